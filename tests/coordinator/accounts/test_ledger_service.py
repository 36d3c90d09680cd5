"""Requests for proofs of the ledger are bounded, by party and in all; heads are answered to everybody."""

from collections.abc import Sequence

from coordinator.accounts.ledger_service import BURST, PER_PARTY, LedgerService
from p2p.limits.origin import Origin
from protocol.ledger_heads import EntryProof, GrownHead, LedgerRequest


class Heads:
    """Heads that answer anything at once, and count the proofs."""

    def __init__(self) -> None:
        self.proved = 0

    def grown(self, after: int | None) -> list[GrownHead]:
        return [GrownHead(sealed=b"a head")]

    def proofs(self, entries: Sequence[int], size: int) -> list[EntryProof]:
        self.proved += len(entries)
        return [EntryProof(entry=number, previous=bytes(32), canonical=b"", path=[]) for number in entries]


class Station:
    """A service on a clock of its own. A peer's name ends with its party."""

    def __init__(self) -> None:
        self.now, self.durable, self.heads = 0.0, 0, Heads()
        self.service = LedgerService(
            self.heads,  # type: ignore[arg-type]
            lambda peer: Origin(peer, peer[-1]),
            self._commit,
            lambda: self.now,
        )

    async def _commit(self) -> None:
        self.durable += 1

    async def ask(self, peer: str, entries: Sequence[int] = ()) -> tuple[int, int]:
        answer = await self.service.answer(peer, LedgerRequest(after=1, entries=list(entries), size=9))
        return len(answer.heads), len(answer.proofs)


async def test_a_party_has_a_burst_of_proofs_and_then_a_few_per_second_whatever_its_keys() -> None:
    station = Station()
    got = [await station.ask(f"key {number} of A", [1, 2]) for number in range(BURST + 10)]
    assert got == [(1, 2)] * BURST + [(1, 0)] * 10
    station.now += 10
    got = [await station.ask("one more of A", [1]) for _ in range(40)]
    assert got.count((1, 1)) == 10 * PER_PARTY
    assert station.durable == BURST + 50


async def test_many_parties_together_take_no_more_than_the_share_of_proofs_and_heads_cost_nothing_of_it() -> None:
    station = Station()
    for number in range(2 * BURST):
        assert await station.ask(f"{number}") == (1, 0)
    parties = "ABCDEFGH"
    for number in range(8 * BURST):
        await station.ask(parties[number % 8], [1])
    assert station.heads.proved == BURST
    station.now += 1
    assert await station.ask("Z", [1, 2, 3]) == (1, 3)
