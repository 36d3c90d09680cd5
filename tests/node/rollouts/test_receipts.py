"""The proofs that a node has offline, from its own folder alone."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.node.cli import main
from echo2.node.home import run_folder
from echo2.node.rollouts.outbox import Outbox
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.envelope import decode_unverified, document_hash, seal, verify_envelope
from echo2.p2p.identity import generate_key, public_bytes, write_key
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Receipt
from echo2.runtime.exit_codes import Exit
from tests.support.fake_coordinator import START, FakeCoordinator, Keys

NONE = "0 proved to be in the ledger, by 0 signed heads, and the weights of 0 follow from their lengths"
PASSPHRASE = "nobody knows"


@dataclass
class Home:
    """A node's folder after some work; its Receipts are signed by the ledger key of their time."""

    path: Path
    coordinator: FakeCoordinator
    key: Ed25519PrivateKey

    def receive(self, number: int, **changes: object) -> None:
        """Store a Receipt as the daemon does. `changes`: false fields in the stored bytes."""
        lease, body, keys = bytes([number]) * 16, b"a submission", self.coordinator.keys
        fields: dict[str, object] = {
            "run": self.coordinator.run, "node": public_bytes(self.key), "lease": lease, "era": 1, "version": 1,
            "submission_hash": document_hash(body), "verdict": "accepted", "code": "ok", "reason": "",
            "trainable": True, "weight": 1, "entry": 0, "entry_hash": bytes(32), "at": 5,
        }  # fmt: skip
        sealed = seal("receipt", self.coordinator.run, encode(Receipt(**fields)), keys.ledger)  # type: ignore[arg-type]
        with closing(Outbox(self._outbox, node=public_bytes(self.key), limit=9)) as outbox:
            outbox.put(lease, body, number)
            outbox.take_receipt(lease, sealed, self._open, 9)
        if changes:
            false = encode(Receipt(**fields | changes))  # type: ignore[arg-type]
            with closing(sqlite3.connect(self._outbox, isolation_level=None)) as database:
                database.execute(
                    "UPDATE submissions SET receipt = ? WHERE lease = ?",
                    (seal("receipt", self.coordinator.run, false, keys.ledger), lease),
                )

    def rotate(self) -> None:
        """Issue a Root with another ledger key, and have this node adopt it."""
        old = self.coordinator.keys
        new = self.coordinator.keys = Keys(root=old.root, policy=old.policy, channel=old.channel)
        self.coordinator.roots.append(self.coordinator.sealed_root(len(self.coordinator.roots), new, old.root))
        self.records().update_roots(self.coordinator.roots, START)

    def records(self) -> TrustStore:
        invite = self.coordinator.invite()
        return TrustStore(run_folder(self.path, invite.run) / "trust", invite.run, invite.root_hash, START)

    @property
    def _outbox(self) -> Path:
        return run_folder(self.path, self.coordinator.run) / "outbox.sqlite"

    def _open(self, sealed: bytes, kind: str) -> bytes:
        return verify_envelope(sealed, kind, self.coordinator.run, {public_bytes(self.coordinator.keys.ledger)})


def home_of(folder: Path, passphrase: str | None) -> Home:
    """Return the folder of a node that joined and has the run's first Root."""
    home = Home(folder / "home", FakeCoordinator(folder / "run", now=lambda: START), generate_key())
    write_key(home.path / "node.key", home.key, passphrase)
    (home.path / "invite").write_text(home.coordinator.invite().to_text())
    home.records().update_roots(home.coordinator.roots, START)
    return home


def verify(home: Home, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code of `echo2-node receipts verify`."""
    monkeypatch.setattr("sys.argv", ["echo2-node", "receipts", "verify", "--home", str(home.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_receipts_hold_offline_also_those_of_an_earlier_ledger_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path, None)
    home.receive(1)
    home.rotate()
    home.receive(2)
    capsys.readouterr()
    assert verify(home, monkeypatch) == Exit.OK
    assert capsys.readouterr().out == f"2 receipts right, 0 wrong; {NONE}\n"


@pytest.mark.parametrize("false", [{"node": b"x" * 32}, {"run": b"x" * 32}, {"lease": b"x" * 16}], ids=str)
def test_a_receipt_of_another_node_run_or_lease_is_named_and_ends_with_81(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], false: dict[str, bytes]
) -> None:
    home = home_of(tmp_path, None)
    home.receive(1)
    home.receive(2, **false)
    assert verify(home, monkeypatch) == Exit.TRUST
    fault = f"{'02' * 16}: the Receipt is for another node, lease or run"
    assert capsys.readouterr().out == f"{fault}\n1 receipt right, 1 wrong; {NONE}\n"


def test_a_receipt_that_the_key_signed_for_another_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path, None)
    home.receive(1)
    with closing(sqlite3.connect(*tmp_path.rglob("outbox.sqlite"), isolation_level=None)) as database:
        (stored,) = database.execute("SELECT receipt FROM submissions").fetchone()
        moved = seal("receipt", b"x" * 32, decode_unverified(stored).payload, home.coordinator.keys.ledger)
        database.execute("UPDATE submissions SET receipt = ?", (moved,))
    assert verify(home, monkeypatch) == Exit.TRUST
    assert capsys.readouterr().out.startswith(f"{'01' * 16}: ")


def test_a_protected_key_is_read_with_the_passphrase_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path, PASSPHRASE)
    home.receive(1)
    assert verify(home, monkeypatch) == Exit.CONFIG
    assert "set ECHO2_KEY_PASSPHRASE" in capsys.readouterr().err
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", PASSPHRASE)
    assert verify(home, monkeypatch) == Exit.OK
    assert capsys.readouterr().out == f"1 receipt right, 0 wrong; {NONE}\n"


def test_the_list_is_a_table_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path, None)
    home.receive(1)
    with closing(Outbox(home._outbox, node=public_bytes(home.key), limit=9)) as outbox:
        outbox.put(bytes([2]) * 16, b"a submission", 1_700_000_000_000)
    monkeypatch.setattr("sys.argv", ["echo2-node", "receipts", "list", "--home", str(home.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        f"made                 answer    after    proof  lease{' ' * 29}reason",
        f"2023-11-14 22:13:20  queued                    {'02' * 16}",
        f"1970-01-01 00:00:00  accepted  0.008 s  none   {'01' * 16}",
    ]
