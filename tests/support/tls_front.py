"""TLS in front of a page, as by an operator's proxy: `python -m tests.support.tls_front LISTEN TO CERTIFICATE KEY`."""

import asyncio
import contextlib
import ssl
import sys


async def main(listen: str, to: str, certificate: str, key: str) -> None:
    """Pass the bytes of each connection on, until cancelled. `listen`, `to`: HOST:PORT."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = to.rpartition(":")
        try:
            page = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(passed(reader, page[1]), passed(page[0], writer))

    host, _, port = listen.rpartition(":")
    async with await asyncio.start_server(serve, host, int(port), ssl=context) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
