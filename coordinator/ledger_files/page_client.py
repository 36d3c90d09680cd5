"""Fetch files of a run's page over HTTP or HTTPS, one after the other over one connection.

Rules
1. No redirect is followed, no proxy of the environment is used, and TLS is verified.
2. A page that says it is busy (429, 503) is asked again after its Retry-After, at most `LONGEST_RETRY_SECONDS` seconds,
   `REQUEST_ATTEMPTS` times in all. So is one whose connection ended, once.
3. Every other answer than 200 is `Unreachable`, with the address and what to do; 404 is `Declined`.
"""

import contextlib
import http.client
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Final

from echo2.p2p.errors import Declined, Unreachable
from echo2.runtime.errors import LocalFault

REQUEST_ATTEMPTS: Final = 20
LONGEST_RETRY_SECONDS: Final = 60.0
_CONNECTION_SECONDS: Final = 60.0


class PageClient:
    """The client of one page. `sleep`: waits that many seconds. Raises `LocalFault` for a URL that is none."""

    def __init__(self, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        parts = urllib.parse.urlsplit(url if url.endswith("/") else f"{url}/")
        kinds = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise LocalFault(f"{url} is no address of a page: {error}") from error
        if parts.scheme not in kinds or not host or parts.query or parts.fragment:
            raise LocalFault(f"{url} is no address of a page: only http:// and https:// are read, without ? or #")
        self._url, self._path, self._sleep = url, parts.path, sleep
        self._connection = kinds[parts.scheme](host, port, timeout=_CONNECTION_SECONDS)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def fetch(self, path: str) -> Iterator[http.client.HTTPResponse]:
        """Yield the body below the page's `/ledger/` at `path`. Raises `Unreachable`, and `Declined` for a path that
        the page lacks."""
        answer = self._await_answer(f"{self._path}ledger/{path}")
        try:
            with self._reading(f"ledger/{path}"):
                yield answer
        finally:
            if not answer.isclosed():
                self._connection.close()

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Have an answer that breaks off be `Unreachable`."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Unreachable(f"{self._url} ended within `{path}`: {str(error) or type(error).__name__}") from error

    def _await_answer(self, path: str) -> http.client.HTTPResponse:
        for _ in range(REQUEST_ATTEMPTS):
            answer = self._send_request(path)
            if answer.status == http.client.OK:
                return answer
            with self._reading(path):
                after, said = answer.getheader("Retry-After", ""), answer.read(200).decode(errors="replace").strip()
            self._connection.close()
            if answer.status not in (http.client.TOO_MANY_REQUESTS, http.client.SERVICE_UNAVAILABLE):
                fault = Declined if answer.status == http.client.NOT_FOUND else Unreachable
                raise fault(f"{self._url} answers {answer.status} for {path} ({said}): is it the page of a run?")
            self._sleep(min(LONGEST_RETRY_SECONDS, int(after)) if after.isdecimal() and len(after) < 6 else 1.0)
        raise Unreachable(f"{self._url} is busy: try again later")

    def _send_request(self, path: str) -> http.client.HTTPResponse:
        """Send a request, over a new connection where the page has closed the last one (rule 2)."""
        for last in (False, True):
            try:
                self._connection.request("GET", path, headers={"Accept-Encoding": "identity"})
                answer: http.client.HTTPResponse = self._connection.getresponse()
                return answer
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if last:
                    said = str(error) or type(error).__name__
                    raise Unreachable(f"no page answers at {self._url} ({said}): check the address") from error
        raise AssertionError
