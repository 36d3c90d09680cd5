"""`echo2-coord policy`: listing and hashing the versions of a store, with and without a running coordinator."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.p2p.envelope import seal
from echo2.weights.diff import Payload, encode, encode_full
from echo2.weights.documents import Edge, TensorEntry, Version
from echo2.weights.snapshot import Snapshot, writing_snapshot
from echo2.weights.store import Store
from tests.support.run_folders import NOW


@pytest.fixture(autouse=True)
def _at_the_time_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_options, "now", lambda: NOW)


def said(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def snapshot(path: Path, bits: NDArray[np.uint16]) -> Snapshot:
    with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=bits.shape)], {}) as writer:
        writer.write(bits)
        writer.finish()
    return Snapshot(path)


def put(store: Store, run: Run, version: int, *payloads: Payload) -> None:
    """Store a version as a publisher does: its files, and documents signed by the policy key."""
    for payload in payloads:
        edge = Edge(
            era=1, base=version - 1 if payload.base_root else None, base_root=payload.base_root, version=version,
            root=payload.root, codec=payload.codec, payload_hash=payload.hash, length=payload.length,
            chunk_size=1 << 18, chunk_root=bytes(32),
        )  # fmt: skip
        store.put_document("edge", 1, version, seal("edge", run.id, edge.to_bytes(), run.keys.policy))
        store.put_payload(1, version, payload.hash, payload.path)
    path = store.scratch(str(version))
    snapshot = Snapshot(path)
    document = Version(era=1, version=version, root=snapshot.root, tensors=snapshot.tensors)
    store.put_document("version", 1, version, seal("version", run.id, document.to_bytes(), run.keys.policy))
    store.put_snapshot(1, version, snapshot.root, path)


def published(home: Path) -> Store:
    """Store version 0 in full, and version 1 in full and by a diff of one element in 50. The store stays open, as in a
    running coordinator."""
    run, store = setup.load_run(home, env={}, now=NOW), Store(home / "store")
    bits = np.arange(1000, dtype=np.uint16)
    old = snapshot(store.scratch("0"), bits)
    new = snapshot(store.scratch("1"), bits + (bits % 50 == 0))
    full = encode_full(new, store.scratch("full"))
    diff = encode(old, new, store.scratch("diff"))
    put(store, run, 0, encode_full(old, store.scratch("base")))
    put(store, run, 1, diff, full)
    return store


@pytest.mark.parametrize("running", [True, False])
def test_the_versions_are_listed_beside_a_running_coordinator_and_without(home: Path, running: bool) -> None:
    with published(home) as store:
        lengths = {file.nbytes for file in store.payloads()}
        if not running:
            store.close()
        code, out, _ = said("policy", "ls", "--json", "--home", home)
        rows = json.loads(out)
        assert code == 0
        assert [(row["era"], row["version"], row["held"]) for row in rows] == [(1, 0, True), (1, 1, True)]
        assert [[(e["base"], e["rho"], e["held"]) for e in row["edges"]] for row in rows] == [
            [(None, None, True)],
            [(None, None, True), (0, 0.02, True)],
        ]
        assert {e["nbytes"] for row in rows for e in row["edges"]} == lengths
        code, out, _ = said("policy", "ls", "--home", home)
        *table, hint = out.splitlines()
        assert (code, len(table)) == (0, 4)
        assert {len(text_line) for text_line in table} == {len(table[0])}, "columns are in line"
        assert hint.startswith("take one home as a model folder: echo2-coord policy export FOLDER --version best")
        assert table[-1].split()[:2] == ["1", "0"]
        assert [row["nbytes"] for row in rows] == [2000, 2000]
        diff = rows[1]["edges"][1]["nbytes"]
        assert table[-1].split()[2:5] == [f"{diff:,}", f"{diff / 2000:.2%}", "2.000%"]


def test_dropped_payloads_and_snapshots_are_listed_as_dropped(home: Path) -> None:
    with published(home) as store:
        store.collect({(1, 1)}, 0)
        rows = json.loads(said("policy", "ls", "--json", "--home", home)[1])
        assert [row["held"] for row in rows] == [False, True]
        assert [e["held"] for e in rows[0]["edges"]] == [False]


@pytest.mark.parametrize("kind", ["payloads", "snapshots"])
def test_verify_ends_with_81_and_names_the_damaged_file(home: Path, kind: str) -> None:
    with published(home) as store:
        assert said("policy", "verify", "--home", home)[:2] == (0, "5 files hashed again: 5 intact, 0 damaged\n")
        path = getattr(store, kind)()[0].path
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        code, out, err = said("policy", "verify", "--home", home)
        assert (code, out) == (81, "5 files hashed again: 4 intact, 1 damaged\n")
        assert str(path) in err
        assert err.count("\n") == 1
        path.unlink()
        code, _, err = said("policy", "verify", "--home", home)
        assert code == 81
        assert str(path) in err
        assert said("policy", "ls", "--home", home)[0] == 0


def test_a_document_that_the_policy_key_did_not_sign_is_not_listed(home: Path) -> None:
    with published(home) as store:
        run = setup.load_run(home, env={}, now=NOW)
        forged = Version(era=1, version=2, root=bytes(32), tensors=[])
        store.put_document("version", 1, 2, seal("version", run.id, forged.to_bytes(), run.keys.channel))
        code, out, err = said("policy", "ls", "--home", home)
        assert (code, out) == (81, "")
        assert "version: 0 of 1 required signatures" in err


def test_without_a_store_the_operator_is_told_to_run_first_and_none_is_made(home: Path) -> None:
    for command in ("ls", "verify"):
        code, out, err = said("policy", command, "--home", home)
        assert (code, out) == (78, "")
        assert "echo2-coord run" in err
    assert not (home / "store").exists()
