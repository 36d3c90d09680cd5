"""Secrets never reach a log: a whole network works and meets faults while every line of any level is kept."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.errors import P2PError
from echo2.p2p.identity import load_key
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.runtime.logs import set_up_logging, to_file, to_stream
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.logging_state import logging_as_before
from tests.support.swarm import Swarm, accepted, make_swarm, working

PASSPHRASE = "canary-passphrase-5b1f"


@pytest.fixture(autouse=True)
def _as_it_was_before() -> Iterator[None]:
    with logging_as_before():
        yield


def forms(key: Ed25519PrivateKey) -> dict[str, str]:
    """Return the forms in which a private key might be written."""
    raw = key.private_bytes_raw()
    return {"hex": raw.hex(), "base64": base64.b64encode(raw).decode().rstrip("="), "Python's": repr(raw)[2:-1]}


def secrets_of(swarm: Swarm) -> dict[str, str]:
    """Return every secret of the run and its nodes, by name."""
    keys = swarm.run.keys
    found = {
        f"{role} key, {form}": text
        for role in ("policy", "channel", "ledger", "network")
        for form, text in forms(getattr(keys, role)).items()
    }
    for path in swarm.folder.rglob("*.pem"):
        found[f"the file {path.name}"] = path.read_text().splitlines()[1]
    for name in ("alice", "bob"):
        for path in (swarm.folder / name).rglob("*.pem"):
            found |= {f"{name}'s key, {form}": text for form, text in forms(load_key(path, None)).items()}
    return found


@on_fake_clock
async def test_no_secret_stands_in_a_log_of_any_level(tmp_path: Path) -> None:
    stream, log = io.StringIO(), tmp_path / "logs" / "all.jsonl"
    set_up_logging(to_stream(stream), to_file(log), level="debug", named=True)
    found: dict[str, str] = {}
    seeds = set[str]()
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        async with working(alice, bob):
            await until(lambda: accepted(alice) >= 2 and accepted(bob) >= 2)
            await _faults(swarm)
        rows = coordinator.group_service.database.all("SELECT document FROM leases")
        seeds.update(seed.hex() for (document,) in rows for seed in decode(document, Lease).seeds)
    found.update(secrets_of(swarm))
    found["the invite"] = swarm.invite().to_text()
    structlog.get_logger("test").info("canary", passphrase=PASSPHRASE, invite="canary-invite", seed=b"canary-seed")
    try:
        raise RuntimeError("a fault of our own")
    except RuntimeError:
        _passphrase = PASSPHRASE  # a local variable, which no traceback shows
        structlog.get_logger("test").exception("fault")
    written = stream.getvalue() + log.read_text()
    assert written.count("\n") > 20, "the log has lines"
    assert len(found) > 10
    assert len(seeds) > 4
    canaries = {"the passphrase": PASSPHRASE, "a canary invite": "canary-invite", "a canary seed": b"canary-seed".hex()}
    assert [name for name, text in (found | canaries).items() if text in written] == []
    assert [seed for seed in seeds if seed in written] == []


async def _faults(swarm: Swarm) -> None:
    """Send garbage to the coordinator, so that refusals and faults are logged, too."""
    peer = Peer(swarm.network.transport("vandal"), seed=9)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        await peer.ready()
        await peer.dial([f"/memory/0/p2p/{swarm.run.peer_id}"])
        for method in ("hello", "lease", "submit", "documents"):
            try:
                await peer.request(swarm.run.peer_id, method, b"\xc1garbage", timeout=2)
            except P2PError:
                continue
        tasks.cancel_scope.cancel()
