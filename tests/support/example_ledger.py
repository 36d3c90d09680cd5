"""A ledger that a test writes step by step: leases, epochs of a market with their asks, entries that the rules refuse.
A token weighs a milli-RE in it, and the order of a lottery can be chosen."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.database.database import Database
from echo2.coordinator.market import epochs
from echo2.coordinator.market.entries import EpochAnnounced, NewEntry
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.ledger_entries import Posting, canonical, chain_hash
from echo2.ledger.ledger_facts import KeyRotated, LeaseReversed, Remark
from echo2.p2p.identity import peer_id
from echo2.protocol.sealed_asks import commitment
from tests.support.generated_ledger import GeneratedLedger

NODES = sorted(peer_id(bytes([number]) * 32) for number in range(1, 10))
"""Peer ids, in order."""
HOUR = 3_600_000
SALT = bytes(16)


class ExampleLedger(GeneratedLedger):
    """A ledger in memory, written step by step. `market`: None in a run of points."""

    def __init__(self, seed: int, database: Database, run: bytes, key: Ed25519PrivateKey, *, market: bool) -> None:
        super().__init__(seed, database, run, key, market=market)
        self.set_costs(given=1, attention=0, decode=1, denominator=1, unit=1_000)

    @property
    def state(self) -> MarketState:
        """The market's state after the last entry."""
        assert self.market is not None
        return self.market.market

    # leases

    def lease(self, node: str, weight: int, length: int = 0, *, kind: str = "accepted", **more: Any) -> LeaseOutcome:
        """End a lease that began now, after `length` ms. `kind`: accepted, refused or expired. `more`: other fields."""
        begin = self.now
        self.now += length
        usual = {"sent": begin, "expires": self.now, "code": "ok" if kind == "accepted" else "drift"}
        if kind == "accepted":
            usual |= {"weight": weight, "turns": [[weight]], "costs": self.costs[0]}
        one = self.outcome(node, **(usual | {"rules": 3, "audited": ""} | more))  # type: ignore[arg-type]
        self.append(f"lease.{kind}", f"lease:{one.lease.hex()}", one, self.moves_of(one))
        return one

    def moves_of(self, one: LeaseOutcome) -> tuple[Posting, ...]:
        """Return the postings of an accepted group under the code `ok`."""
        return self.weight("escrow:run", f"node:{one.node}:accrued", one.weight) if one.weight else ()

    def measure(self, rates: Mapping[str, int], groups: int = 30) -> None:
        """Measure nodes beside one another, in an epoch in which none is active: each brings groups of 3.6 s at its own
        rate, milli-RE per hour."""
        self.epoch({}, need=0)
        begin = self.now
        for node, rate in rates.items():
            self.now = begin
            for _ in range(groups):
                self.lease(node, rate // 1_000, 3_600)
        self.close()

    def take_back(self, one: LeaseOutcome) -> None:
        """Take back an accepted group of a market."""
        fact = LeaseReversed(node=one.node, lease=one.lease, code=one.code, paid=False, weight=one.weight,
                             audited=False, by="operator", why="a check")  # fmt: skip
        self.append("lease.reversed", f"reversed:{one.lease.hex()}", fact)

    def forfeit_of(self, one: LeaseOutcome) -> None:
        """Take a group back where it stands, and let its node forfeit what it earned."""
        assert self.market is not None
        if self.market.shares.due(one.lease) is None:
            self.take_back(one)
        node, amount = self.market.shares.due(one.lease) or ("", 0)
        self.put(epochs.forfeit(self.state, self.now, node, amount, "a check", one.lease))

    # an epoch

    def announce_terms(self, **terms: Any) -> None:
        """Announce the next epoch. `terms`: those that are not the usual ones."""
        usual = {"closes": self.now + 10, "milliseconds": HOUR, "need": 10**6, "reserve": 10**6, "budget": 10**15,
                 "newcomers": 0, "cap": 1000, "run_off": 0}  # fmt: skip
        self.put(epochs.announce(self.state, self.now, EpochAnnounced(epoch=self.state.epoch + 1, **(usual | terms))))

    def seal(self, asks: Mapping[str, int]) -> None:
        for node, ask in asks.items():
            number = self.state.epoch + 1
            sealed = commitment(self.run, node, number, ask, SALT)
            self.put(epochs.seal_ask(self.state, self.now, node, number, sealed))

    def draw(self, order: Sequence[str] = ()) -> None:
        """Draw the lottery once asks are closed. `order`: of the lots of these nodes; a remark leads to it."""
        assert self.state.announced is not None
        self.now = max(self.now, self.state.announced.closes + 1)
        if order:
            tip, key = self.ledger.tip(), f"key:{order[0]}:{self.ledger.tip().entries + 1}"
            for number in range(10_000):
                fact = Remark(node=order[0], why=f"{number}")
                written = canonical(tip.entries + 1, self.now, "node.noted", key, (), msgspec.msgpack.encode(fact))
                beacon = hashlib.sha256(self.run + chain_hash(tip.hash, written)).digest()
                lots = [hashlib.sha256(beacon + node.encode()).digest() for node in order]
                if lots == sorted(lots):
                    break
            else:
                raise AssertionError("no remark leads to this order")
            self.append("node.noted", key, fact)
        beacon = hashlib.sha256(self.run + self.ledger.tip().hash).digest()
        self.put(epochs.draw(self.state, self.now, beacon))

    def reveal(self, asks: Mapping[str, int]) -> None:
        for node, ask in asks.items():
            self.put(epochs.open_ask(self.state, self.now, node, self.state.epoch + 1, ask, SALT))

    def open(self, present: Iterable[str]) -> None:
        self.put(epochs.open_epoch(self.state, self.now, present))

    def epoch(
        self, asks: Mapping[str, int], *, order: Sequence[str] = (), owners: Mapping[str, bytes] | None = None,
        present: Iterable[str] = NODES, **terms: Any,
    ) -> None:  # fmt: skip
        """Announce and open an epoch with these asks. `order`: of the lots."""
        self.announce_terms(**terms)
        if owners is not None:
            self.put(epochs.group_owners(self.state, self.now, dict(owners)))
        self.seal(asks)
        self.draw(order)
        self.reveal(asks)
        self.open(present)

    def close(self) -> None:
        self.put(epochs.close_epoch(self.state, self.now))

    def vest(self) -> None:
        self.put(epochs.vest(self.state, self.now))

    def release(self) -> None:
        self.put(epochs.release(self.state, self.now))

    def settle(self) -> None:
        """Close the epoch, and write what vests and is released then."""
        self.close()
        self.vest()
        self.release()

    # keys

    def rotate(self, node: str, successor: str) -> None:
        fact = KeyRotated(node=node, successor=successor)
        self.append("key.rotated", f"key:{successor}:{self.ledger.tip().entries + 1}", fact)

    # entries beside the history

    def beside(self, new: NewEntry, **changes: Any) -> None:
        """Note an entry that stands behind those there are, and is left out: the replayers judge it. `changes`: of its
        facts."""
        facts = msgspec.structs.replace(new.facts, **changes)
        self.note(new.kind, new.key, facts, new.postings, at=new.at)

    def look(self) -> None:
        """Compare the state here, too: a remark is noted that nothing refuses."""
        key = f"key:{NODES[0]}:{self.ledger.tip().entries + 1}"
        self.note("node.noted", key, Remark(node=NODES[0], why="look"))
