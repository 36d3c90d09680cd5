"""A ledger with two epochs of a market in it, told by the product's own code into files that an operator may forge.

1. `Operator` has the keys of a run, and writes as many histories of its ledger as wanted, each into a database of its
   own: real entries, real heads signed with the run's key, and a real export.
2. The history: three nodes are measured, ask, and return `GROUPS` groups each in each of two epochs of a quarter of an
   hour; the asks for the second are sealed and opened during the first. A head is signed once the asks of each epoch
   have closed, whose beacon it is, and behind the last one. One more entry follows, so that the export ends with a head
   and has no table of the coordinator beside it.
3. Nothing of it touches a network or a process. Equal arguments give equal bytes, but for the run's keys.
"""

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts.head_signing import LedgerHeads, StoredHead
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.reversals import PREFIX
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.market.entries import FACTS, EpochAnnounced, EpochClosed, NewEntry
from echo2.coordinator.market.epochs import (
    announce,
    benchmark,
    close_epoch,
    draw,
    forfeit,
    open_ask,
    open_epoch,
    release,
    seal_ask,
    vest,
)
from echo2.coordinator.market.forfeit_shares import share
from echo2.coordinator.market.market_replay import market_of
from echo2.coordinator.market.market_state import MarketState
from echo2.coordinator.run import setup
from echo2.coordinator.run.model_folder import write_tiny_tokenizer
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseReversed
from echo2.p2p.identity import peer_id, public_bytes
from echo2.protocol.group_weights import GroupLengths, group_weight
from echo2.protocol.sealed_asks import commitment
from echo2.tasks.tokenizer import CHAR_SIZE, EOS

START: Final = 1_800_000_000_000
"""Milliseconds: when the history begins."""
QUARTER: Final = 900_000
GROUPS: Final = 33
"""Of a node in an epoch: from 30 on its own measurement counts."""
EACH: Final = QUARTER // (GROUPS + 1)
"""Milliseconds between two groups of a node."""
ASKED: Final = EACH * GROUPS // 4
"""Milliseconds for which asks are sealed."""
ASKS: Final = (60_000_000, 90_000_000, 130_000_000)
"""Nano units per hour, of each node."""
RESERVE, BUDGET = 600_000, 10**12
"""Nano units: per RE, and of an epoch."""
NEED: Final = 1_000_000
"""Milli-RE per hour: two of the nodes are needed once all are measured, and the third sets a price."""
SALT: Final = b"a salt of an ask"
LENGTHS: Final = GroupLengths(20, [[100]] * 4)
WEIGHT: Final = group_weight(None, LENGTHS)
"""Milli-RE of a group."""


_FACTS: Final = {**FACTS, "lease.reversed": LeaseReversed}
_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "run": {"name": "frauds", "task": "reverse"},
    "market": {"enabled": True, "reserve": "0.0006", "budget": "1000"},
    "payout": {"rail": "csv"},
}


class Story(NamedTuple):
    """Differences from the honest history. `reserve`: of the second epoch. `lost`: the group of the first node in the
    first epoch, by number, that has no entry. `friend`: whether the last node has one group more there. `accused`: how
    many groups of the first node are taken back between the epochs, and forfeited. `budget`: of the second epoch."""

    reserve: int = RESERVE
    lost: int | None = None
    friend: bool = False
    accused: int = 0
    budget: int = BUDGET


HONEST: Final = Story()


class LedgerCopy(NamedTuple):
    """A history as it was written. `heads`: signed over it. `folder`: its export."""

    database: Path
    entries: list[Entry]
    heads: list[StoredHead]
    folder: Path


class Operator:
    """A run with its keys, in a new folder. `nodes`: peer ids of those that work; `own`: of one of the operator's.
    `copies`: files written so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        model = folder / "model"
        _write_model(model)
        config = setup.settings_for(str(model), _SETTINGS, env={})
        self.run = setup.init(folder / "run", str(model), config, now=START)
        keys = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3, 4))
        *self.nodes, self.own = (peer_id(public_bytes(key)) for key in keys)
        self.copies = 0

    def told(self, story: Story = HONEST) -> LedgerCopy:
        """Write a history by the rules of the market, and export it."""

        def tell(teller: _Teller) -> None:
            teller.begin(self.nodes)
            teller.seal_asks(1, story)
            teller.now += ASKED + len(self.nodes) + 1
            teller.open_asks(1)
            teller.epoch(1, story)
            for group in range(story.accused):
                teller.take_back(self.nodes[0], 100 + group)
            teller.epoch(2, story)
            teller.end(teller.now, self.nodes[0])

        return self._written(tell)

    def forged(self, honest: LedgerCopy, forge: Callable[[list[NewEntry]], list[NewEntry]]) -> LedgerCopy:
        """Write the entries of a history anew, after `forge` has changed them, with heads over as many entries. One
        that is cut short ends as the honest one does."""
        signed = {one.head.size: one.head.issued for one in honest.heads}

        def tell(teller: _Teller) -> None:
            entries = forge([new_entry(one) for one in honest.entries])
            for number, one in enumerate(entries, start=1):
                teller.write(one)
                if number in signed:
                    teller.sign(signed[number])
            if len(entries) < max(signed):
                teller.end(entries[-1].at, self.nodes[0])

        return self._written(tell)

    def exported(self, database: Path) -> Path:
        """Export a database in the place of the run's own; return the folder."""
        self.copies += 1
        folder = self._folder / f"export-{self.copies}"
        own = self.run.folder.database
        for path in (own, *own.parent.glob(f"{own.name}-*")):
            path.unlink(missing_ok=True)
        own.write_bytes(database.read_bytes())
        export(self.run.folder, folder, market_of=market_of)
        return folder

    def _written(self, tell: "Callable[[_Teller], None]") -> LedgerCopy:
        self.copies += 1
        path = self._folder / f"ledger-{self.copies}.sqlite"
        with Database.open(path) as database:
            database.do("PRAGMA synchronous = OFF")
            ledger, sealer = Ledger(database), Sealer(self.run)
            heads = LedgerHeads(database, ledger, self.run.id, sealer, sealer.note, every=1)
            with database.transaction():
                tell(_Teller(ledger, heads, self.run.id))
            entries, signed = list(ledger.entries()), list(heads.all())
            database.do("PRAGMA wal_checkpoint(TRUNCATE)")
        return LedgerCopy(path, entries, signed, self.exported(path))


class _Teller:
    """Writes entries, and lets the market read those that follow its rules. `now`: ms."""

    def __init__(self, ledger: Ledger, heads: LedgerHeads, run: bytes) -> None:
        self._ledger, self._heads = ledger, heads
        self.state = MarketState(run)
        self.now = START
        self._nodes: Sequence[str] = ()
        self._bids: list[tuple[str, int]] = []
        self._closed: Sequence[ClosedNode] = ()
        """The rows of the epoch that closed last."""

    def write(self, new: NewEntry) -> Entry:
        """Write an entry, whatever the market thinks of it."""
        return self._ledger.append(new.at, new.kind, new.key, new.facts, new.postings)

    def tell(self, new: NewEntry | None) -> None:
        """Write an entry that follows from the market's rules."""
        if new is not None:
            self.state.take(self.write(new))

    def sign(self, at: int) -> bytes:
        """Sign a head over all entries; return its hash."""
        self._heads.sign(at)
        newest = self._heads.newest()
        assert newest is not None
        return hashlib.sha256(newest.sealed).digest()

    def begin(self, nodes: Sequence[str]) -> None:
        """Measure the nodes."""
        self._nodes, self._bids = nodes, list(zip(nodes, ASKS, strict=True))
        for node in nodes:
            self.tell(benchmark(self.now, node, 4 * GROUPS * WEIGHT // 2))

    def seal_asks(self, number: int, story: Story) -> None:
        """Announce an epoch, and seal the asks for it."""
        second = number == 2
        self.tell(announce(self.state, self.now, EpochAnnounced(
            epoch=number, closes=self.now + ASKED, milliseconds=QUARTER, need=NEED,
            reserve=story.reserve if second else RESERVE, budget=story.budget if second else BUDGET, newcomers=50,
            cap=1000, run_off=0,
        )))  # fmt: skip
        for place, (node, ask) in enumerate(self._bids):
            sealed = commitment(self.state.run, node, number, ask, SALT)
            self.tell(seal_ask(self.state, self.now + place, node, number, sealed))

    def open_asks(self, number: int) -> None:
        """Draw the lottery of an epoch, and open its asks."""
        closes = self.state.next_terms(number).closes
        self.tell(draw(self.state, closes + 1, self.sign(closes + 1)))
        for place, (node, ask) in enumerate(self._bids, start=1):
            self.tell(open_ask(self.state, closes + place, node, number, ask, SALT))

    def epoch(self, number: int, story: Story) -> None:
        """Go through an epoch, from its opening to the release of its pay; ask for the second one during the first."""
        opened = self.now
        self.tell(open_epoch(self.state, opened, self._nodes))
        for group in range(GROUPS):
            self.now = opened + group * EACH
            if number == 1 and group == GROUPS // 3:
                self.seal_asks(2, story)
            if number == 1 and group == GROUPS - GROUPS // 3:
                self.open_asks(2)
            for place, node in enumerate(self._nodes):
                if (number, place, group) != (1, 0, story.lost):
                    self.tell(self._lease(node, 100 * number + group, place))
            if story.friend and (number, group) == (1, 0):
                self.tell(self._lease(self._nodes[-1], 100 * number + GROUPS, 0))
        self.now = opened + QUARTER
        closed = close_epoch(self.state, self.now)
        assert isinstance(closed.facts, EpochClosed)
        self._closed = closed.facts.nodes
        self.tell(closed)
        for settle in (vest, release):
            self.tell(settle(self.state, self.now))

    def take_back(self, node: str, number: int) -> None:
        """Take a group of the first epoch back, and let the node forfeit what it earned. `number`: of the lease."""
        lease = _lease_id(node, number)
        fact = LeaseReversed(
            node=node, lease=lease, code="ok", paid=False, weight=WEIGHT, audited=True, by="operator", why="accused"
        )
        self.tell(NewEntry(self.now, "lease.reversed", f"{PREFIX}{lease.hex()}", fact))
        (row,) = (row for row in self._closed if row.node == node)
        self.tell(forfeit(self.state, self.now, node, share(row, WEIGHT), "a false group", lease))

    def end(self, at: int, node: str) -> None:
        """Sign the last head, and write the entry behind it."""
        self.sign(at)
        self.write(benchmark(at, node, 1))

    def _lease(self, node: str, number: int, place: int) -> NewEntry:
        """Return the end of a lease. `number`: of the node's. `place`: of the node."""
        sent = self.now + place
        lease = _lease_id(node, number)
        outcome = LeaseOutcome(
            node=node, lease=lease, era=1, version=1, sent=sent, expires=sent + 60_000, received=sent + EACH - 5_000,
            code="ok", rollouts=len(LENGTHS.turns), tokens_in=len(LENGTHS.turns) * LENGTHS.prompt, weight=WEIGHT,
            trainable=True, tokens_out=sum(map(sum, LENGTHS.turns)), submission_hash=bytes(32), rules=3,
            audited="exact", prompt=LENGTHS.prompt, turns=[list(one) for one in LENGTHS.turns],
        )  # fmt: skip
        return NewEntry(sent + EACH, "lease.accepted", f"lease:{lease.hex()}", outcome)


def _lease_id(node: str, number: int) -> bytes:
    return hashlib.sha256(f"{node} {number}".encode()).digest()[:16]


def new_entry(entry: Entry) -> NewEntry:
    """Return an entry in the form in which it is written again."""
    facts = msgspec.msgpack.decode(entry.facts, type=_FACTS.get(entry.kind, LeaseOutcome))
    return NewEntry(entry.at, entry.kind, entry.key, facts, entry.postings)


def _write_model(folder: Path) -> None:
    """Write a model folder of one tensor: nothing here computes with it."""
    write_tiny_tokenizer(folder)
    config = {"model_type": "qwen3", "vocab_size": CHAR_SIZE, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
