"""HTTP to one server, from a thread of its own, so that many requests wait at once and the engine's thread for none.

Rules
1. Answers are read whole, up to a size that the caller knows from its request, and must be a JSON object: parsing takes
   some thirty times as much memory.
2. A server that refuses connections, or lets `patience` seconds pass without an answer, is gone (`ServerGone`). One
   that answers with an error, or with what is no JSON object, is at fault for that request only (`ServerFault`).
3. No redirection is followed: weights and key go to the address that the owner named, and nowhere else.
4. A request that is cancelled closes its connection: the server may stop computing for it.
"""

import asyncio
import atexit
import concurrent.futures
import json
import threading
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from echo2.engines.engine import EngineError
from echo2.runtime.printable import printable

ANSWER_SECONDS: Final = 300.0
"""Seconds for an answer. A lease lives 900 s at most."""
MOST_BYTES: Final = 1 << 20
"""Most bytes of an answer, unless the caller says another number."""
_SHOWN_CHARACTERS: Final = 300
"""Characters of an answer that a sentence quotes."""


class ServerGone(EngineError):
    """The server cannot be reached, or does not answer."""


class ServerFault(EngineError):
    """The server answered a request with an error, or with what cannot be read."""


class HttpClient:
    """`address`: address as http://127.0.0.1:8000. `key`: sent as a bearer token; empty: none. `patience`: seconds."""

    def __init__(self, address: str, *, key: str = "", patience: float = ANSWER_SECONDS) -> None:
        self.address = address.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.patience = patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._thread.start()
        self._session = self._run(self._open())
        atexit.register(self.close)

    def get(self, path: str) -> dict[str, Any]:
        """Get an answer. Raises ServerGone, ServerFault."""
        answer: dict[str, Any] = self._run(self._ask("GET", path, None))
        return answer

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        most: int = MOST_BYTES,
        within: float | None = None,
    ) -> dict[str, Any]:
        """Post and get an answer of at most `most` bytes. `within`: seconds, if fewer than the client's patience.
        Raises ServerGone, ServerFault."""
        answer: dict[str, Any] = self._run(self._ask("POST", path, body, most, within))
        return answer

    def begin(
        self, path: str, body: Mapping[str, Any], *, most: int = MOST_BYTES
    ) -> "concurrent.futures.Future[dict[str, Any]]":
        """Post; the answer, of at most `most` bytes, or the error, will be the future's."""
        return asyncio.run_coroutine_threadsafe(self._ask("POST", path, body, most), self._loop)

    def close(self) -> None:
        """End all requests and the thread."""
        atexit.unregister(self.close)
        self._run(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(headers=self._headers, connector=connector)

    def _run(self, answer: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        most: int = MOST_BYTES,
        within: float | None = None,
    ) -> dict[str, Any]:
        patience = self.patience if within is None else min(within, self.patience)
        timeout = aiohttp.ClientTimeout(total=patience)
        try:
            url = self.address + path
            async with self._session.request(method, url, json=body, allow_redirects=False, timeout=timeout) as answer:
                content = await _read(answer.content, most)
                status = answer.status
        except TimeoutError as error:
            raise ServerGone(f"the server {self.address} did not answer within {patience:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            why = quotable_text(" ".join(str(error).split()) or type(error).__name__)
            raise ServerGone(f"the server {self.address} cannot be reached: {why}") from error
        if status != 200:
            raise ServerFault(f"the server {self.address} answered {path} with {status}: {_quote_content(content)}")
        return _object(content, path)


async def _read(stream: aiohttp.StreamReader, most: int) -> bytes:
    content = bytearray()
    async for part in stream.iter_chunked(1 << 16):
        content += part
        if len(content) > most:
            raise ServerFault(f"the server's answer is longer than {most:,} bytes: no such answer is")
    return bytes(content)


def _object(content: bytes, path: str) -> dict[str, Any]:
    try:
        answer = json.loads(content) if content else {}
    except (ValueError, RecursionError) as error:
        raise ServerFault(f"the server's answer to {path} is no JSON: {_quote_content(content)}") from error
    if not isinstance(answer, dict):
        raise ServerFault(f"the server's answer to {path} is no JSON object: {_quote_content(content)}")
    return answer


def _quote_content(content: bytes) -> str:
    return quotable_text(" ".join(content[: 4 * _SHOWN_CHARACTERS].decode(errors="replace").split())) or "nothing"


def quotable_text(text: str) -> str:
    """Return the beginning of a server's text, as a sentence may quote it: control characters could rewrite the owner's
    terminal, and a lone surrogate cannot be printed."""
    return printable(text[:_SHOWN_CHARACTERS])
