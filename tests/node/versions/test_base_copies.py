"""Beginning from a copy of the base model: what it saves on the network, and copies that are none of version 0."""

import asyncio
import itertools
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from structlog.testing import capture_logs

from echo2.node.errors import BadConfig
from echo2.node.versions import base_copies
from echo2.node.versions.base_copies import BaseCopies, BaseCopy
from echo2.node.versions.local_weights import LocalWeights
from echo2.p2p.identity import generate_key
from echo2.p2p.swarm.manifest import manifest_of
from echo2.runtime.exit_codes import Exit
from echo2.weights.diff import encode
from echo2.weights.documents import DType, Edge, TensorEntry, Version
from echo2.weights.errors import Stopped
from echo2.weights.hf_import import bf16_of
from echo2.weights.lora.adapter_config import BASE_FILE
from echo2.weights.lora.frozen_base import BaseFormat
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support import adapted, tiny_model
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working

NAMES = [f"layers.{number:02d}.weight" for number in range(12)]


def hub_folder(home: Path, snapshot: Path, model: str = "someone/bigram", revision: str = "a1b2") -> Path:
    """Write a snapshot into a cache of the hub under `home`; return its folder."""
    folder = home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots" / revision
    folder.mkdir(parents=True)
    shutil.copy(snapshot, folder / "model.safetensors")
    return folder


def found_under(home: Path) -> BaseCopies:
    return BaseCopies("auto", {"HF_HOME": str(home)})


class Published:
    """Versions 0, 1, ... of weights whose source on a hub is in another number format."""

    def __init__(self, folder: Path, versions: int = 2) -> None:
        self.folder = folder
        self.random = np.random.default_rng(0)
        self.source = {name: self.random.normal(size=(40, 50)).astype(np.float32) for name in NAMES}
        self.model = folder / "model"
        self.model.mkdir(parents=True)
        save_file(self.source, self.model / "model.safetensors")
        self.snapshots = [self._written(0, {name: bf16_of(one.view(np.uint32)) for name, one in self.source.items()})]
        self.edges = [self.edge(None, 0)]
        for version in range(1, versions):
            last = self.snapshots[-1]
            changed = {name: last.bits(name).reshape(40, 50) ^ (self.random.random((40, 50)) < 0.01) for name in NAMES}
            self.snapshots.append(self._written(version, changed))
            self.edges.append(self.edge(version - 1, version))
        newest = self.snapshots[-1]
        self.version = Version(era=1, version=versions - 1, root=newest.root, tensors=newest.tensors)

    def _written(self, version: int, bits: dict[str, Any]) -> Snapshot:
        path = self.folder / f"{version}.safetensors"
        table = [TensorEntry(name=name, dtype="BF16", shape=(40, 50)) for name in NAMES]
        with writing_snapshot(path, table, {}) as writer:
            for name in NAMES:
                writer.write(np.ascontiguousarray(bits[name], np.uint16).ravel())
            writer.finish()
        return Snapshot(path)

    def edge(self, base: int | None, version: int) -> Edge:
        old, new = None if base is None else self.snapshots[base], self.snapshots[version]
        path = self.folder / f"{base}-{version}.edge"
        codec = encode(old, new, path).codec
        manifest = manifest_of(path)
        return Edge(
            era=1, base=base, base_root=old.root if old else None, version=version, root=new.root, codec=codec,
            payload_hash=manifest.hash, length=manifest.length, chunk_size=manifest.chunk_size,
            chunk_root=manifest.chunk_root, tensor_hashes=b"" if old else b"".join(new.tensor_hashes()),
        )  # fmt: skip

    def choose(self, named: str | Path, **environ: str) -> Any:
        return BaseCopies(str(named), environ).choose("someone/small", self.version, self.edges)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tmp_path_factory.mktemp("published"))


@on_fake_clock
async def test_a_node_with_a_copy_fetches_the_diffs_alone(small_run: SmallRun, tmp_path: Path) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving():
        home = tmp_path / "huggingface"
        hub_folder(home, coordinator.snapshots[0].path)
        await coordinator.publish(1)
        await coordinator.publish(2)
        _, *diffs = [edge.length for _, edge, _ in coordinator.edges]
        node = small_run.node(copies=found_under(home))
        async with working(node):
            await until(lambda: accepted(node) >= 2)
            assert node.holds(2)
            assert node.daemon.payloads.taken_bytes == sum(diffs)
            assert (await node.daemon.network.exchange.traffic()).received < sum(diffs) + 1000
            assert node.daemon.follower.refused == []


@on_fake_clock
async def test_a_node_with_a_copy_of_the_newest_version_fetches_nothing_and_goes_on_by_diffs(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator, key = small_run.coordinator, generate_key()
    async with small_run.serving():
        model = tmp_path / "copy"
        model.mkdir()
        shutil.copy(coordinator.snapshots[0].path, model / "model.safetensors")
        node = small_run.node(key=key, copies=BaseCopies(str(model), {}))
        async with working(node):
            await until(lambda: accepted(node) >= 1)
            assert node.holds(0)
            assert node.daemon.payloads.taken_bytes == 0
            await coordinator.publish(1)
            await until(lambda: node.holds(1))
        shutil.rmtree(model)
        again = small_run.node(key=key, copies=BaseCopies(str(model), {}))
        async with working(again):
            await until(lambda: again.holds(1))
            assert again.daemon.payloads.taken_bytes == 0, "a copy is not needed any more"


@on_fake_clock
async def test_a_named_copy_of_another_revision_ends_the_node_and_the_next_start_fetches(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator, key = small_run.coordinator, generate_key()
    async with small_run.serving():
        await coordinator.publish(1)
        other = hub_folder(tmp_path, coordinator.snapshots[1].path)
        data = bytearray((other / "model.safetensors").read_bytes())
        data[-2] ^= 1
        (other / "model.safetensors").write_bytes(data)
        node = small_run.node(key=key, copies=BaseCopies(str(other), {}))
        with pytest.raises(BadConfig, match="is not version 0 of this run: 1 of its 1 tensors differs") as error:
            await node.daemon.run()
        assert error.value.exit == Exit.CONFIG
        again = small_run.node(key=key, copies=found_under(tmp_path))
        with capture_logs() as logged:
            async with working(again):
                await until(lambda: accepted(again) >= 1)
        (remark,) = [one["reason"] for one in logged if one["event"] == "copy of the base passed over"]
        assert "1 of its 1 tensors differs" in remark
        assert again.daemon.payloads.taken_bytes == sum(edge.length for _, edge, _ in coordinator.edges)


def test_a_copy_in_another_number_format_and_in_shards_is_cast_as_the_learner_casts(
    published: Published, tmp_path: Path
) -> None:
    for number, names in enumerate((NAMES[:5], NAMES[5:])):
        save_file({name: published.source[name] for name in names}, tmp_path / f"{number}.safetensors")
    weight_map = {name: f"{int(name in NAMES[5:])}.safetensors" for name in NAMES}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    copy = published.choose(tmp_path)
    assert copy.root == published.snapshots[0].root
    assert copy.saves == published.edges[0].length


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def _revised(path: Path) -> None:
    tensors = load_file(path)
    for name in NAMES[:3]:
        tensors[name][0, 0] += 1
    save_file(tensors, path)


def _as(dtype: DType, path: Path) -> None:
    kinds: dict[DType, Any] = {"F64": np.float64, "I32": np.int32}
    save_file({name: one.astype(kinds[dtype]) for name, one in load_file(path).items()}, path)


def _of_another_model(path: Path) -> None:
    save_file({"embedding": np.ones(3, np.float32)}, path)


BAD: dict[str, tuple[Any, str]] = {
    "of another revision": (_revised, "is not version 0 of this run: 3 of its 12 tensors differ"),
    "truncated": (_truncated, "tensors take 96000 bytes, the file holds 91000; download the file again"),
    "empty": (lambda path: path.write_bytes(b""), "not a safetensors file"),
    "of another number format": (lambda path: _as("F64", path), r"is F64 \(40, 50\) in \S+, not BF16"),
    "of integers": (lambda path: _as("I32", path), r"is I32 \(40, 50\) in \S+, not BF16"),
    "of another model": (_of_another_model, "lacks tensor 'layers.00.weight'"),
    "gone": (lambda path: path.unlink(), "holds no safetensors model"),
    "a dangling link": (
        lambda path: (path.unlink(), path.symlink_to("/nowhere/blob")), "holds no safetensors model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_copy_that_was_named_is_answered_by_one_sentence(
    published: Published, tmp_path: Path, fault: str
) -> None:
    folder = shutil.copytree(published.model, tmp_path / "copy")
    spoil, sentence = BAD[fault]
    spoil(folder / "model.safetensors")
    with pytest.raises(BadConfig, match=sentence) as error:
        published.choose(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("fault", [fault for fault in BAD if fault not in ("gone", "a dangling link")])
def test_a_bad_copy_that_was_found_is_a_remark(published: Published, tmp_path: Path, fault: str) -> None:
    folder = hub_folder(tmp_path, published.model / "model.safetensors", "someone/small")
    BAD[fault][0](folder / "model.safetensors")
    with capture_logs() as logged:
        assert published.choose("auto", HF_HOME=str(tmp_path)) is None
    assert [one["event"] for one in logged if one["event"].endswith("over")] == ["copy of the base passed over"]


def test_the_revision_that_is_version_0_is_found_among_others_and_under_another_name(
    published: Published, tmp_path: Path
) -> None:
    bad = hub_folder(tmp_path, published.model / "model.safetensors", "someone/small", "a1")
    _revised(bad / "model.safetensors")
    hub_folder(tmp_path, published.model / "model.safetensors", "someone/other", "c3")
    good = hub_folder(tmp_path, published.model / "model.safetensors", "the/source", "b2")
    _of_another_model(tmp_path / "hub/models--someone--other/snapshots/c3/model.safetensors")
    assert published.choose("auto", HF_HOME=str(tmp_path)).folder == good
    second = hub_folder(tmp_path, published.model / "model.safetensors", "someone/small", "b9")
    assert published.choose("auto", HF_HOME=str(tmp_path)).folder == second
    assert published.choose(tmp_path).folder == second
    assert published.choose("none", HF_HOME=str(tmp_path)) is None


def test_the_comparison_of_a_copy_ends_within_a_piece_once_the_node_is_to_end(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echo2.weights.hf_import._PIECE_ELEMENTS", 100)
    asked = itertools.count(1)
    copies = BaseCopies(str(published.model), {})
    with pytest.raises(Stopped):
        copies.choose("small", published.version, published.edges, lambda: next(asked) >= 5)
    assert next(asked) == 6, "it was asked no more"
    assert copies.choose("small", published.version, published.edges) is not None, "it is looked for again"
    weights = LocalWeights(tmp_path / "weights", quota=1 << 30)
    weights.ends.set()
    copy = BaseCopy(published.model, published.snapshots[0].root, 1)
    with pytest.raises(Stopped):
        weights.adopt(copy, published.version)
    weights.ends.clear()
    assert weights.root() is None


@pytest.mark.parametrize("adapters", [False, True], ids=["weights", "a frozen base"])
async def test_an_owner_who_ends_the_node_does_not_wait_for_the_comparison(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapters: bool
) -> None:
    """Ctrl-C and `leave` waited for minutes, until gigabytes of a copy were read."""
    begun = threading.Event()

    def endless(*words: Any) -> None:
        begun.set()
        while not words[-1]():
            time.sleep(0.01)
        raise Stopped

    monkeypatch.setattr(base_copies, "_write_frozen_base" if adapters else "tensor_hashes", endless)
    if adapters:
        small_run.coordinator.add_asset(BASE_FILE, b"of an adapter")
        small_run.coordinator.runspec = small_run.coordinator.sealed_runspec()
    async with small_run.serving():
        model = tmp_path / "copy"
        model.mkdir()
        shutil.copy(small_run.coordinator.snapshots[0].path, model / "model.safetensors")
        node = small_run.node(copies=BaseCopies(str(model), {}))
        running = asyncio.ensure_future(node.daemon.run())
        await until(begun.is_set)
        node.daemon.interrupt("Ctrl-C")
        async with asyncio.timeout(20):
            assert await running == Exit.OK


def test_a_copy_is_not_read_where_the_runs_edges_begin_at_a_newer_version(published: Published, tmp_path: Path) -> None:
    hub_folder(tmp_path, published.model / "model.safetensors", "someone/small")
    full = published.edge(None, 1)
    for copies in (found_under(tmp_path), BaseCopies(str(published.model), {})):
        assert copies.choose("someone/small", published.version, [full]) is None


def test_a_copy_is_left_out_where_the_diffs_from_it_have_more_bytes(published: Published) -> None:
    full = published.edge(None, 1)
    long = msgspec.structs.replace(published.edges[1], length=full.length + 1)
    assert BaseCopies(str(published.model), {}).choose("small", published.version, [full, long]) is None


@pytest.mark.parametrize("form", ["bfloat16", "q8_0", "q4_0"])
def test_the_frozen_base_of_a_run_of_adapters_is_written_from_a_copy(tmp_path: Path, form: BaseFormat) -> None:
    whole = tiny_model.make(tmp_path / "whole")
    home = tmp_path / "home"
    hub_folder(home, whole.snapshot, "someone/tiny")
    manifest = manifest_of(adapted.adapt(whole, form) / BASE_FILE)
    found_under(home).write_frozen_base("tiny", manifest, tmp_path / BASE_FILE)
    assert manifest_of(tmp_path / BASE_FILE) == manifest
    found_under(home).write_frozen_base("other", manifest, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    other = tiny_model.make(tmp_path / "second", seed=9)
    with pytest.raises(BadConfig, match=r"does not give this run's base\.safetensors"):
        BaseCopies(str(_as_model(other.snapshot, tmp_path / "named")), {}).write_frozen_base(
            "tiny", manifest, tmp_path / "second" / BASE_FILE
        )
    assert list((tmp_path / "second").glob(f"*{BASE_FILE}*")) == []


def _as_model(snapshot: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(snapshot, folder / "model.safetensors")
    return folder
