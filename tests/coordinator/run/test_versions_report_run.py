"""`echo2-coord policy` on a real publisher's store: 33 versions, skips, an anchor, dropped payloads, a bad byte."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.learner.checkpoints.checkpoint import Base
from echo2.coordinator.learner.checkpoints.export import starts
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.coordinator.run import setup
from echo2.weights.diff import encode, encode_full
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot
from echo2.weights.store import Store
from tests.support.publishing import publisher_over
from tests.support.quick_disk import quick_folder
from tests.support.run_folders import NOW

LAST, ELEMENTS = 32, 40_000


def said(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["policy", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def exports(folder: Path) -> list[Export]:
    """Export versions as a learner does: each changes one weight in 100, with diffs from the same bases as in a run."""
    rng = np.random.default_rng(9)
    bits = (rng.normal(0, 0.02, ELEMENTS).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    exported: list[Export] = []
    published: list[Base] = []
    for version in range(LAST + 1):
        with writing_snapshot(
            folder / f"{version}.safetensors", [TensorEntry(name="w", dtype="BF16", shape=bits.shape)], {}
        ) as writer:
            writer.write(bits)
            writer.finish()
        new = Snapshot(folder / f"{version}.safetensors")
        edges = []
        for base in starts(version, published, published[0] if published else None):
            payload = encode(Snapshot(Path(base.snapshot)), new, folder / f"{version}-{base.version}.edge").path
            edges.append(ExportedEdge(base=base.version, base_root=base.root, payload=str(payload)))
        if not edges:
            payload = encode_full(new, folder / "full.edge").path
            edges = [ExportedEdge(base=None, base_root=None, payload=str(payload))]
        exported.append(Export(version=version, root=new.root, snapshot=str(new.path), edges=edges, seconds=0.0))
        published.append(Base(version=version, root=new.root, snapshot=str(new.path)))
        bits = bits + (rng.random(ELEMENTS) < 0.01).astype(np.uint16)
    return exported


async def _publish(publisher: Publisher, exported: list[Export]) -> None:
    for export in exported:
        await publisher.publish(1, export.version, export)


@pytest.fixture
def quick_home(home: Path) -> Iterator[Path]:
    with quick_folder() as folder:
        yield Path(shutil.copytree(home, folder / "run"))


@pytest.mark.slow
def test_the_store_of_a_run_is_listed_and_verified(quick_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_options, "now", lambda: NOW)
    home, exported = quick_home, quick_home / "exports"
    run = setup.load_run(home, env={}, now=NOW)
    exported.mkdir()

    with Store(home / "store") as store:
        signing = Signing(run.id, run.keys.policy, run.keys.channel, run.root.serial)
        publisher = publisher_over(store, home, signing=signing, clock=lambda: NOW / 1000)
        anyio.run(_publish, publisher, exports(exported))
        rows = json.loads(said("ls", "--json", "--home", home)[1])
        bases = {row["version"]: [edge["base"] for edge in row["edges"]] for row in rows}
        assert (bases[0], bases[1], bases[24], bases[32]) == ([None], [0], [16, 20, 22, 23], [0, 16, 24, 28, 30, 31])
        rho = {edge["base"]: edge["rho"] for edge in rows[32]["edges"]}
        assert rho[31] == pytest.approx(0.01, rel=0.2)
        assert rho[31] < rho[30] < rho[28] < rho[24] < rho[16] < rho[0]
        anyio.run(publisher.retain, (1, 29), 1 << 30, 0)
        code, out, _ = said("ls", "--home", home)
        *table, advice = out.splitlines()
        cells = [text_line.split() for text_line in table]
        assert code == 0
        assert {len(text_line) for text_line in table} == {len(table[0])}, "columns are in line"
        assert "policy export" in advice
        assert [(int(row[0]), row[1]) for row in cells[1:] if row[5] == "held"] == [
            (0, "full"), (16, "0"), (24, "16"), (28, "24"), (29, "28"), (30, "28"), (30, "29"), (31, "30"),
            *((32, base) for base in ("0", "16", "24", "28", "30", "31")),
        ], "a way from the first version to the 29th, and all since"  # fmt: skip
        assert {int(row[0]) for row in cells[1:] if row[6] == "held"} == {LAST}, "one snapshot"
        assert said("verify", "--home", home)[:2] == (0, "15 files hashed again: 15 intact, 0 damaged\n")
        payload = store.payloads()[-1].path
        data = bytearray(payload.read_bytes())
        data[len(data) // 2] ^= 0x40
        payload.write_bytes(data)
        code, out, err = said("verify", "--home", home)
        assert (code, out) == (81, "15 files hashed again: 14 intact, 1 damaged\n")
        assert str(payload) in err
        assert "(version 32)" in err
