"""A node's folder in a run that pays dollars, after an epoch of three groups; its ledger is the market's own."""

from contextlib import closing
from pathlib import Path

from echo2.coordinator.market.epochs import benchmark
from echo2.node.home import run_folder
from echo2.node.rollouts.outbox import Outbox
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import WitnessedHead
from echo2.node.trust.market_store import FILE, MarketStore
from echo2.node.trust.pay_witness import close_key
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.envelope import document_hash, seal, verify_envelope
from echo2.p2p.identity import generate_key, peer_id, public_bytes, write_key
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import LedgerHead
from echo2.protocol.market import EpochTerms, MarketResponse
from tests.support.entry_proofs import proved_under, root_of
from tests.support.fake_coordinator import START, FakeCoordinator
from tests.support.market import Book

PRICE = 1_000


class PaidNode:
    """A node's folder after one epoch of three groups."""

    def __init__(self, folder: Path) -> None:
        self.home, self.coordinator, self.key = folder / "home", FakeCoordinator(folder / "run"), generate_key()
        self.peer = peer_id(public_bytes(self.key))
        self.book = Book()
        write_key(self.home / "node.key", self.key, None)
        (self.home / "invite").write_text(self.coordinator.invite().to_text())
        self.folder = run_folder(self.home, self.coordinator.run)
        invite = self.coordinator.invite()
        trust = TrustStore(self.folder / "trust", invite.run, invite.root_hash, START)
        trust.update_roots(self.coordinator.roots, START)
        trust.update_runspec(self.coordinator.sealed_runspec(price_mode="market", currency="USD"))
        self._work()

    def _work(self) -> None:
        self.book.add(benchmark(0, self.peer, 60_000))
        opened = self.book.epoch(1, [self.peer], {self.peer: 60_000}, need=60_000, reserve=4_000, cap=1000)
        for place in range(3):
            self.book.lease(self.peer, opened + place, opened + 10 + place, 1000)
        self.book.close(opened + 900_000)

    def receive(self, number: int = 0, **changes: object) -> None:
        """Store the receipt of one of the groups."""
        entry = [one for one in self.book.entries if one.kind == "lease.accepted"][number]
        lease, body = bytes([entry.seq]) * 16, b"a submission"
        fields: dict[str, object] = {
            "run": self.coordinator.run, "node": public_bytes(self.key), "lease": lease, "era": 1, "version": 1,
            "submission_hash": document_hash(body), "verdict": "accepted", "code": "ok", "reason": "",
            "trainable": True, "weight": 1000, "entry": entry.seq, "entry_hash": bytes(32), "at": 5, "epoch": 1,
            "price": PRICE,
        }  # fmt: skip
        keys = self.coordinator.keys
        sealed = seal("receipt", self.coordinator.run, encode(Receipt(**fields | changes)), keys.ledger)  # type: ignore[arg-type]
        with closing(Outbox(self.folder / "outbox.sqlite", node=public_bytes(self.key), limit=9)) as outbox:
            outbox.put(lease, body, 1)
            outbox.take_receipt(lease, sealed, self._open, START)

    def prove(self) -> None:
        """Take a head over the ledger, and store the proofs of the epoch."""
        entries = self.book.entries
        root = root_of(entries)(len(entries))
        assert root is not None
        head = LedgerHead(
            log=self.coordinator.run, number=1, size=len(entries), root=root, tip=entries[-1].hash, issued=START
        )
        sealed = seal("ledgerhead", self.coordinator.run, encode(head), self.coordinator.keys.ledger)
        numbers = {entry.key: entry.seq for entry in entries}
        closed = proved_under(entries, numbers[close_key(1)])
        with closing(LedgerStore(self.folder / "ledger.sqlite")) as store:
            store.put(WitnessedHead(head, sealed), 0)
            store.want_epochs([1])
            store.put_epoch(1, closed, None)

    def promise(self, price: int, most: int) -> None:
        """Store what the run promised while the epoch ran."""
        running = EpochTerms(epoch=1, closes=1, opens=2, milliseconds=900_000, need=1, reserve=4_000)
        answer = MarketResponse(currency="USD", coming=None, running=running, place="active", price=price, most=most)
        with closing(MarketStore(self.folder / FILE)) as store:
            store.put_answer(answer, START)

    def _open(self, sealed: bytes, kind: str) -> bytes:
        return verify_envelope(sealed, kind, self.coordinator.run, {public_bytes(self.coordinator.keys.ledger)})
