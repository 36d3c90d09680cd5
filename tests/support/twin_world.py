"""A run whose nodes are of different subnets; a few of them have a long record."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.group_world import ALICE, BOB, World, group, name, opened

CAROL = name("carol", 0, 32)
HOMES = {ALICE: Origin("a", "10.0.1.0/24"), BOB: Origin("b", "10.0.2.0/24"), CAROL: Origin("c", "10.0.3.0/24")}
TURNAROUND = 2_000
"""Milliseconds that each group of `prove` takes."""
PROVEN = 31


class TwinWorld(World):
    """A `World` whose requests have origins. Each lease of its nodes lasts a minute at least."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        given = {"batch_groups": 4, "least_ms": 60_000, "first_ms": 60_000}
        super().__init__(folder, **(given | terms))
        self.drawn: list[bytes] = []

    @property
    def version(self) -> int:
        assert self.group_service.progress is not None
        return self.group_service.progress.version

    def ask_for(self, node: bytes, *, home: Origin | None = None, **changes: Any) -> Lease | Refusal:
        """Request a lease from the node's home."""
        request = self.ask(**({"version": self.version} | changes))
        answer = self.group_service.lease(node, request, self.now, home or HOMES[node])
        return answer if isinstance(answer, Refusal) else opened("lease", answer, Lease)

    def given(self, node: bytes, **changes: Any) -> Lease:
        """Request a lease that must be given."""
        answer = self.ask_for(node, **changes)
        assert isinstance(answer, Lease), answer
        return answer

    def prove(self, *nodes: bytes, groups: int = PROVEN) -> None:
        """Let each node bring so many groups, each within `TURNAROUND`, and the learner draw them."""
        for node in nodes:
            for _ in range(groups):
                lease = self.given(node)
                self.now += TURNAROUND - 10
                self.bring([lease])

    def learn(self) -> None:
        """Let the learner make the steps for which there are groups."""
        while (batch := self.group_service.draw(self.now)) is not None:
            self.drawn += [one.id for one in batch]
            self.learner_at(self.version + 1)

    def fill(self, node: bytes) -> list[Lease]:
        """Let a node take leases until there is no room."""
        taken = []
        while isinstance(answer := self.ask_for(node), Lease):
            taken.append(answer)
        assert answer.code in ("no-room", "later"), answer
        return taken

    def bring(self, leases: Iterable[Lease]) -> None:
        """Let the nodes of leases submit their groups, and the learner draw them."""
        for lease in leases:
            self.submit(group(lease), lease.node)
        self.decide_all()
        self.learn()
