"""A run in which new keys get canaries: nodes of different subnets, of which Bob is proven."""

from pathlib import Path
from typing import Any

from echo2.coordinator.leases.kinds.canary_answers import WantedAnswer
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.engines.engine import Sample, SampleScore
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease, Receipt
from tests.support.group_world import BOB, group, name
from tests.support.twin_world import TwinWorld

DAVE, ERIN = name("dave", 0, 32), name("erin", 0, 32)
NEWCOMERS = {DAVE: Origin("d", "10.0.4.0/24"), ERIN: Origin("e", "10.0.5.0/24")}


class CanaryWorld(TwinWorld):
    """A `TwinWorld` with canaries for new keys, and none by lot unless `canaries` is given. Groups that agree with
    their answer are accepted by comparison, others as an honest scorer would."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        super().__init__(folder, **({"canaries": 1e-9, "batch_groups": 8} | terms))
        self.scored: list[bytes] = []
        """Leases whose groups the scorer passed."""

    def joins(self, node: bytes, **changes: Any) -> Lease:
        """Let a newcomer request its first lease."""
        return self.given(node, home=NEWCOMERS.get(node) or Origin(node.hex(), node.hex()), **changes)

    def kind(self, lease: Lease) -> str:
        """Return the column `twin` of a lease."""
        return str(self.group_service.database.value("SELECT twin FROM leases WHERE id = ?", (lease.id,)))

    def decide(self, group: Undecided, scores: list[SampleScore]) -> Receipt:
        self.scored.append(group.lease.id)
        return super().decide(group, scores)

    def answered(self, lease: Lease, **changes: Any) -> Receipt:
        """Let the node of a lease bring its group; return the receipt."""
        self.submit(group(lease, **changes), lease.node)
        (receipt,) = self.decide_all()
        return receipt

    def made(self) -> None:
        """Let the scorer make an answer that is wanted."""
        wanted = self.group_service.wanted_answer()
        assert wanted is not None
        self.made_of(wanted)

    def made_of(self, wanted: WantedAnswer) -> None:
        """Let the scorer end its work on an answer."""
        lease = Lease(
            id=bytes(16), node=BOB, nonce=bytes(16), task=wanted.prompt.task, task_version=1, index=0, prompt=[1],
            seeds=wanted.seeds, limit=8, era=1, version=self.version, root=bytes(32), sent=0, expires=0,
        )  # fmt: skip
        samples = [
            Sample(tokens=list(one.tokens), turns=one.turns, logprobs=[-0.5] * len(one.tokens))
            for one in group(lease).rollouts
        ]
        self.group_service.answer_made(self.version, wanted, samples, self.now)

    def unvested(self, node: str) -> int:
        """Return the weight of a node's canaries that is not its own yet. `node`: its peer id."""
        return self.group_service.ledger.balance(f"node:{node}:unvested")
