"""Serve a folder's files by aiohttp: `python -m benchmarks.web.static_files FOLDER`. The first line is the port."""

import asyncio
import json
import sys

from aiohttp import web


async def serve(folder: str) -> None:
    """Serve until cancelled."""
    app = web.Application()
    app.router.add_static("/", folder)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
