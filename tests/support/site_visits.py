"""Requests to a web site in tests, and its pages as a browser reads them."""

from collections.abc import Awaitable, Callable
from html.parser import HTMLParser

from aiohttp import ClientSession, web

Visit = Callable[[web.Application], Awaitable[ClientSession]]


async def fetched(session: ClientSession, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with session.get(path, headers={"Accept-Encoding": "identity", **headers}) as answer:
        return answer.status, dict(answer.headers), await answer.read()


class Drawn(HTMLParser):
    """A parsed page: its tags with attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    def loaded(self) -> list[str]:
        """Return the addresses that a browser loads without a click."""
        sources = [attrs.get("src") for _, attrs in self.tags]
        sources += [attrs.get("href") for tag, attrs in self.tags if tag == "link"]
        return [address for address in sources if address]
