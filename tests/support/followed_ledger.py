"""The ledger of a run folder, and one node that follows it without a network."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from echo2.coordinator.accounts.head_signing import LedgerHeads, entry_proof
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.run_logs import RunLogs
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files import log_commands
from echo2.coordinator.ledger_files.ledger_backup import restore
from echo2.coordinator.publishing.foreign_heads import ForeignHeads
from echo2.coordinator.run.sealing import Sealer
from echo2.node.rollouts.ledger_exchange import LedgerExchange
from echo2.node.rollouts.outbox import Outbox
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore
from echo2.p2p.envelope import seal
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import LedgerRequest, LedgerResponse
from echo2.protocol.restored_logs import LogRestored
from tests.support.run_folders import NOW, make_run, write_model

ALICE = bytes([1]) * 32
NODE = peer_id(ALICE)


class Outcome(msgspec.Struct, frozen=True):
    node: str
    lease: bytes
    weight: int


def lease(name: str, number: int) -> bytes:
    return hashlib.sha256(f"{name}{number}".encode()).digest()[:16]


class World:
    """A run folder with a ledger, and one node that follows it without a network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = make_run(folder / "run", write_model(folder / "model"))
        self.now = NOW
        self.answers = self._answer
        self.outbox = Outbox(folder / "outbox.sqlite", node=ALICE, limit=9)
        self.store = LedgerStore(folder / "ledger.sqlite")
        trust: Any = SimpleNamespace(trusted=SimpleNamespace(chain=self.run.chain, head=None), serial=1)
        clock = SimpleNamespace(local=lambda: self.now, now=lambda: self.now)
        context: Any = SimpleNamespace(trust_store=trust, run=self.run.id, clock=clock)
        self.exchange = LedgerExchange(
            Handlers(),
            self,
            context,
            self.store,
            self.outbox,
            NodeRunState(lambda: self.now),  # type: ignore[arg-type]
        )
        self.open()

    def open(self) -> None:
        """Open the run's database, as a start of the coordinator does."""
        self.database = Database.open(self.run.folder.database)
        self.ledger, sealer = Ledger(self.database), Sealer(self.run)
        self.logs = RunLogs(self.run.folder, lambda: self.run.chain, self.database)
        self.heads = LedgerHeads(
            self.database, self.ledger, self.run.id, sealer, sealer.note, every=1, logs=lambda: self.logs.logs
        )
        self.foreign = ForeignHeads(
            self.run, self.database, None, lambda why: None, lambda: self.now, lambda: self.logs.logs  # type: ignore[arg-type]
        )  # fmt: skip

    def close(self) -> None:
        self.database.close()
        self.outbox.close()
        self.store.close()

    def work(self, name: str, count: int, *, receipts: bool = True) -> None:
        """Accept groups of the node, with their receipts, and sign a head over them."""
        self.ledger.issue_points(self.now, 10_000)
        for number in range(count):
            self.now += 1
            one = lease(name, number)
            entry = self.ledger.append(self.now, "work", f"work:{one.hex()}", Outcome(NODE, one, 5))
            receipt = Receipt(
                run=self.run.id, node=ALICE, lease=one, era=1, version=1, submission_hash=bytes(32), verdict="accepted",
                code="ok", reason="", trainable=True, weight=5, entry=entry.seq, entry_hash=entry.hash, at=self.now,
            )  # fmt: skip
            if receipts:
                sealed = seal("receipt", self.run.id, encode(receipt), self.run.keys.ledger)
                self.outbox._file.do(
                    "INSERT INTO submissions (lease, state, hash, receipt, made, decided, entry) "
                    "VALUES (?, 'accepted', ?, ?, ?, ?, ?)",
                    (one, bytes(32), sealed, self.now, self.now, entry.seq),
                )
        self.sign()

    def sign(self) -> None:
        self.now += 1
        assert self.heads.sign(self.now) is not None

    def coordinator(self) -> Any:
        return self.ask

    async def peers(self) -> list[Any]:
        return []

    async def instead(self, *, entries: bool) -> AsyncIterator[Any]:
        for source in ():
            yield source

    async def ask(self, request: LedgerRequest) -> LedgerResponse:
        return self.answers(request)

    def _answer(self, request: LedgerRequest) -> LedgerResponse:
        proofs = [entry_proof(self.ledger, number, request.size) for number in request.entries]
        return msgspec.structs.replace(self.heads.answer(request), proofs=[one for one in proofs if one is not None])

    def follow(self) -> None:
        """Let the node do one round. Raises `TrustFailure`."""
        asyncio.run(self.exchange.fetch())

    def lose(self, copy: Path) -> None:
        """Lose run.sqlite, and put a copy in its place."""
        self.database.close()
        for path in self.run.folder.path.glob("run.sqlite*"):
            path.unlink()
        self.now += 1_000
        restore(self.run.folder, copy, self.now)
        self.open()

    def shown(self) -> None:
        """Have the node show its newest head to the coordinator."""
        newest = self.store.newest()
        assert newest is not None
        self.foreign._take(Origin(NODE, NODE), newest.sealed)

    def begin(self) -> LogRestored:
        """Request, sign and install the document of the next log."""
        request = self.folder / f"request{self.now}"
        log_commands.request(self.run.folder.path, request)
        log_commands.sign(request, self.run.folder.keys, None, lambda lines: True)
        log_commands.install(self.run.folder.path, request.with_name(request.name + ".signed"))
        taken = self.logs.look(self.now)
        assert taken is not None
        return taken.document

    def marks(self) -> dict[bytes, int]:
        return {row.lease: row.proved for row in self.outbox.rows()}

    def leases(self, name: str, count: int) -> set[bytes]:
        return {lease(name, number) for number in range(count)}
