"""Requests for proofs of the ledger are bounded, by party and in all; heads are answered to everybody."""

from collections.abc import Sequence

from echo2.coordinator.accounts.ledger_service import (
    ENDS_BURST,
    ENDS_RATE,
    LEDGER_REQUEST_BURST,
    LEDGER_REQUEST_RATE,
    PER_PARTY,
    STRANGERS_ENDS_RATE,
    STRANGERS_REQUEST_RATE,
    LedgerService,
)
from echo2.p2p.limits.origin import Origin
from echo2.protocol.ledger_heads import EndProof, EntryProof, GrownHead, HeadReference, LedgerRequest, LedgerResponse

WORKERS = "abcdefghijklmnopqrstuvwxyz"
"""Parties."""


class Heads:
    """Heads that answer anything at once, and count the proofs."""

    every = 900_000

    def __init__(self) -> None:
        self.proved = 0

    def answer(self, request: LedgerRequest) -> LedgerResponse:
        return LedgerResponse(heads=[GrownHead(sealed=b"a head")], every=self.every)

    def entry_numbers(self, keys: Sequence[str]) -> list[int]:
        return list(range(100, 100 + len(keys)))

    def proofs(self, entries: Sequence[int], size: int) -> list[EntryProof]:
        self.proved += len(entries)
        return [EntryProof(entry=number, previous=bytes(32), canonical=b"", path=[]) for number in entries]


class Ends:
    """Ends that are all there, of one entry."""

    def proofs(self, leases: Sequence[bytes], size: int) -> list[EndProof]:
        return [EndProof(entry=5, index=0, outcome=b"", path=[]) for _ in leases]


class Station:
    """A service on a clock of its own. A peer's name ends with its party; those of `WORKERS` work."""

    def __init__(self) -> None:
        self.now, self.durable, self.heads, self.ends = 0.0, 0, Heads(), Ends()
        self.evidence = list[tuple[str, list[bytes]]]()
        self.service = LedgerService(
            self.heads,  # type: ignore[arg-type]
            self.ends,  # type: ignore[arg-type]
            lambda peer: Origin(peer, peer[-1]),
            lambda origin: origin.party in WORKERS,
            self._commit,
            lambda: self.now,
            lambda peer, heads: self.evidence.append((peer, list(heads))),
            lambda origin, head: self.told.append((origin.party, head.number)),
        )
        self.told = list[tuple[str, int]]()

    async def _commit(self) -> None:
        self.durable += 1

    async def ask(self, peer: str, entries: Sequence[int] = ()) -> tuple[int, int]:
        answer = await self.service.answer(peer, LedgerRequest(after=1, entries=list(entries), size=9))
        return len(answer.heads), len(answer.proofs)


async def test_a_party_has_a_burst_of_proofs_and_then_a_few_per_second_whatever_its_keys() -> None:
    station = Station()
    got = [await station.ask(f"key {number} of A", [1, 2]) for number in range(LEDGER_REQUEST_BURST + 10)]
    assert got == [(1, 2)] * LEDGER_REQUEST_BURST + [(1, 0)] * 10
    station.now += 10
    got = [await station.ask("one more of A", [1]) for _ in range(40)]
    assert got.count((1, 1)) == 10 * PER_PARTY
    assert station.durable == LEDGER_REQUEST_BURST + 50


async def test_many_parties_together_take_no_more_than_the_share_of_proofs_and_heads_cost_nothing_of_it() -> None:
    station = Station()
    for number in range(2 * LEDGER_REQUEST_BURST):
        assert await station.ask(f"{number}") == (1, 0)
    parties = "ABCDEFGH"
    for number in range(8 * LEDGER_REQUEST_BURST):
        await station.ask(parties[number % 8], [1])
    assert station.heads.proved == LEDGER_REQUEST_BURST
    station.now += 1
    assert await station.ask("Z", [1, 2, 3]) == (1, 3)


async def test_strangers_cannot_take_the_proofs_of_those_who_work() -> None:
    station = Station()
    for number in range(20 * LEDGER_REQUEST_BURST):
        await station.ask(chr(1000 + number), [1])
    assert station.heads.proved == LEDGER_REQUEST_BURST
    for number in range(20 * LEDGER_REQUEST_BURST):
        await station.ask(WORKERS[number % 8], [1])
    assert station.heads.proved == 2 * LEDGER_REQUEST_BURST
    station.now += 1
    for number in range(20 * LEDGER_REQUEST_BURST):
        await station.ask(chr(20_000 + number), [1])
        await station.ask(WORKERS[number % 26], [1])
    assert station.heads.proved == 2 * LEDGER_REQUEST_BURST + LEDGER_REQUEST_RATE
    assert STRANGERS_REQUEST_RATE < LEDGER_REQUEST_RATE / 2


async def test_ends_of_leases_have_a_bound_of_their_own_and_come_with_their_entry() -> None:
    station = Station()
    request = LedgerRequest(after=1, leases=[bytes(16), b"x" * 16], size=9)
    answers = [await station.service.answer("a key of A", request) for _ in range(ENDS_BURST + 4)]
    assert [len(answer.ends) for answer in answers] == [2] * ENDS_BURST + [0] * 4
    assert [[one.entry for one in answer.proofs] for answer in answers] == [[5]] * ENDS_BURST + [[]] * 4
    assert {answer.every for answer in answers} == {900_000}
    station.now += 10
    others = [await station.service.answer(chr(1000 + number), request) for number in range(100)]
    assert sum(bool(answer.ends) for answer in others) == ENDS_BURST
    station.now += 1
    others = [await station.service.answer(chr(2000 + number), request) for number in range(100)]
    assert sum(bool(answer.ends) for answer in others) == STRANGERS_ENDS_RATE


async def test_evidence_of_a_fork_counts_as_proofs_do_and_strangers_cannot_keep_out_who_works() -> None:
    station = Station()
    request = LedgerRequest(fork=[b"one", b"other"])
    for number in range(LEDGER_REQUEST_BURST + 10):
        answer = await station.service.answer(f"key {number} of a stranger É", request)
        assert len(answer.heads) == 1
    assert len(station.evidence) == LEDGER_REQUEST_BURST
    for number in range(20 * LEDGER_REQUEST_BURST):
        await station.service.answer(chr(1000 + number), request)
    assert len(station.evidence) == LEDGER_REQUEST_BURST
    await station.service.answer("node of a", request)
    assert station.evidence[-1] == ("node of a", [b"one", b"other"])


async def test_entries_are_proved_by_their_keys_too_within_the_same_bounds() -> None:
    station = Station()
    request = LedgerRequest(after=1, entries=list(range(30)), keys=["epoch:1:closed"] * 8, size=9)
    answer = await station.service.answer("key of A", request)
    assert [proof.entry for proof in answer.proofs] == [*range(30), 100, 101]
    keys = LedgerRequest(after=1, keys=["epoch:1:closed"], size=9)
    proved = [len((await station.service.answer("key of A", keys)).proofs) for _ in range(LEDGER_REQUEST_BURST + 5)]
    assert proved == [1] * (LEDGER_REQUEST_BURST - 1) + [0] * 6


async def test_strangers_cannot_take_the_ends_of_those_who_work() -> None:
    station = Station()
    request = LedgerRequest(after=1, leases=[bytes(16)], size=9)

    async def got(peers: Sequence[str]) -> int:
        return sum([len((await station.service.answer(peer, request)).ends) for peer in peers])

    strangers = [chr(1000 + number) for number in range(4 * ENDS_BURST)]
    assert await got(strangers) == ENDS_BURST
    assert await got(WORKERS) == ENDS_BURST
    station.now += 1
    assert await got(strangers) == STRANGERS_ENDS_RATE
    assert await got(WORKERS) == ENDS_RATE - STRANGERS_ENDS_RATE


async def test_the_head_that_a_client_holds_is_told_with_its_party() -> None:
    station = Station()
    await station.service.answer("a key of A", LedgerRequest(after=7, newest=HeadReference(7, bytes(32))))
    await station.service.answer("a key of B", LedgerRequest(after=7))
    assert station.told == [("A", 7)]
