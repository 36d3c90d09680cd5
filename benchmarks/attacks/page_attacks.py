"""Attacks through the page and its API: names that are markup or formulas, and foreign names of the page itself."""

import http.client
from dataclasses import dataclass, field
from typing import Final

import anyio
import anyio.to_thread

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.attack_client import AttackRefused
from benchmarks.attacks.engine_place import EnginePlace
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.numbers import SPOKEN_NUMBERS
from echo2.protocol.requests import Hello

NAMES: Final = ("<script>alert(1)</script>", '=HYPERLINK("x")', "\x1b[2Jroot", "a\nb", "\u202eevil")
SHOWN: Final = ("/", "/nodes", "/api/v1/nodes", "/api/v1/nodes.csv", "/metrics")
_CONTROL: Final = ("\x1b[2J", "\u202e")
_MARKUP: Final = ("<script>alert(1)", *_CONTROL)
_FORMULAS: Final = ("\n=HYPERLINK", ",=HYPERLINK", ',"=HYPERLINK', *_CONTROL)
_RAW: Final = {"/": _MARKUP, "/nodes": _MARKUP, "/api/v1/nodes.csv": _FORMULAS}
"""Path -> what must not stand in it; in JSON and metrics, which no browser shows as a page, control characters."""


@dataclass
class Names:
    """Nodes whose names are markup, formulas, or control characters, each with an accepted group."""

    leaks: list[str] = field(default_factory=list)
    tried: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Work under each name, then look for the names in what the page serves."""
        for name in NAMES:
            client = await place.client(f"name {self.tried}")
            assert client.spec is not None
            task = client.spec.tasks[0]
            greeting = Hello(
                protocols=SPOKEN_NUMBERS, software=name, name=name, engine=client.engine_class, device=name,
                tasks=[TaskReference(name=task.name, version=task.version)],
                record=RecordIssuer(client.key, client.invite.run).issue([], place.now()),
            )  # fmt: skip
            self.tried += 1
            try:
                await client.send("hello", client.sealed("hello", encode(greeting)))
            except AttackRefused:
                continue
            await client.verdict(client.work(await client.lease()))
        await anyio.sleep(1.5)
        for path in SHOWN:
            status, body = await anyio.to_thread.run_sync(visit, place.order.page, path, "127.0.0.1")
            self.leaks += [f"{path}: status {status}"] * (status != 200)
            self.leaks += [f"{path}: {raw!r}" for raw in _RAW.get(path, _CONTROL) if raw in body]

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Name the pages that serve a name as it came, and those that serve nothing."""
        return AttackFinding(tried=self.tried, prevented=not self.leaks, note="; ".join(self.leaks))


@dataclass
class Rebinding:
    """A web site whose name was made to lead to the page's address."""

    answers: list[int] = field(default_factory=list)

    async def run(self, place: EnginePlace) -> None:
        """Request every path under a foreign name."""
        for path in SHOWN:
            status, _ = await anyio.to_thread.run_sync(visit, place.order.page, path, "evil.example")
            self.answers.append(status)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State the answers: none may be 200."""
        return AttackFinding(
            tried=len(self.answers), prevented=200 not in self.answers, note=f"status {set(self.answers)}"
        )


def visit(port: int, path: str, host: str) -> tuple[int, str]:
    """Request a path of the page under a name; return status and body."""
    visitor = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        visitor.request("GET", path, headers={"Host": host})
        answer = visitor.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        visitor.close()
