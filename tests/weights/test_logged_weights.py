"""Weights with a log of diffs: stepped, folded, cut at every system call and any byte, with and without memory."""

import errno
import itertools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from echo2.runtime import memory_folder as memory_module
from echo2.runtime.memory_folder import memory_folder, remove_memory_folder
from echo2.weights import logged_weights
from echo2.weights.codec import frames
from echo2.weights.diff import encode
from echo2.weights.errors import MemoryFull, Stopped, StoreCorrupt, WrongBase
from echo2.weights.fold import fold
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import begin_log, end_log, fold_log, has_log, open_weights, present_file
from echo2.weights.payload_format import PayloadReader
from echo2.weights.snapshot import Snapshot
from tests.support.cuts import cuts
from tests.support.full_disk import no_room_below
from tests.support.quick_disk import quick_folder

VERSIONS = 5
FRAME = 4096


class Chain(NamedTuple):
    """Versions of a model, and the payload that leads to each from the one before it."""

    snapshots: list[Snapshot]
    payloads: list[Path]


@pytest.fixture
def chain(make_snapshot, monkeypatch: pytest.MonkeyPatch) -> Chain:  # type: ignore[no-untyped-def]
    """Return versions of a model of two dtypes and many small frames."""
    monkeypatch.setattr(frames, "FRAME_ELEMENTS", FRAME)
    rng = np.random.default_rng(4)
    bits = (rng.normal(0, 0.02, 6 * FRAME + 77).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    norm = rng.normal(1, 0.1, 64).astype(np.float32).view(np.uint32)
    snapshots: list[Snapshot] = []
    for number in range(VERSIONS):
        snapshots.append(make_snapshot(str(number), {"a.weight": ("BF16", bits), "b.norm": ("F32", norm)}))
        bits = bits + (rng.random(len(bits)) < 0.01).astype(np.uint16)
        norm = norm ^ rng.integers(0, 3, 64).astype(np.uint32)
    payloads = [encode(old, new, new.path.with_suffix(".payload")).path for old, new in itertools.pairwise(snapshots)]
    return Chain(snapshots, payloads)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a folder of this test stand for the machine's memory. It is no folder of the disk, which may be NFS: there a
    file that is removed while it is open stays for a moment, and in memory it does not."""
    with quick_folder() as root:
        monkeypatch.setattr(memory_module, "MEMORY_ROOT", root)
        yield root


def logged(folder: Path, chain: Chain, steps: int) -> Path:
    """Make a folder of weights with a log of so many diffs."""
    Rolling.create(folder, chain.snapshots[0])
    begin_log(folder)
    for number in range(steps):
        open_weights(folder).apply(chain.payloads[number], chain.snapshots[number + 1].root)
    return folder


def assert_is(folder: Path, snapshot: Snapshot) -> None:
    """Check that a folder is at this version, in its bytes."""
    weights = open_weights(folder)
    assert weights.root == snapshot.root
    assert present_file(folder).read_bytes() == snapshot.path.read_bytes()


def test_nothing_is_read_of_what_another_user_puts_in_its_place(chain: Chain, tmp_path: Path, memory: Path) -> None:
    """A node whose folder in memory was removed showed bytes of another user's file as its version."""
    folder = logged(tmp_path / "weights", chain, 1)
    remove_memory_folder(folder)
    (memory / "theirs" / "weights").mkdir(parents=True)
    (memory / "theirs" / "weights" / "snapshot.safetensors").write_bytes(chain.snapshots[0].path.read_bytes())
    memory_folder(folder).symlink_to(memory / "theirs")
    with pytest.raises(FileNotFoundError):
        present_file(folder)
    memory_folder(folder).unlink()
    assert_is(folder, chain.snapshots[1])


def test_a_step_writes_nothing_to_the_base_and_its_diff_by_another_name(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 3)
    assert_is(folder, chain.snapshots[3])
    assert (folder / "snapshot.safetensors").read_bytes() == chain.snapshots[0].path.read_bytes()
    log = sorted((folder / "log").iterdir())
    assert [one.stat().st_ino for one in log] == [one.stat().st_ino for one in chain.payloads[:3]]
    with pytest.raises(WrongBase):
        open_weights(folder).back()


def test_without_its_memory_the_version_is_made_of_base_and_log(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 4)
    remove_memory_folder(folder)
    assert not logged_weights.is_in_memory(folder)
    assert_is(folder, chain.snapshots[4])


def test_memory_that_another_user_may_read_is_refused(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 1)
    remove_memory_folder(folder)
    memory_folder(folder).mkdir(mode=0o755)
    memory_folder(folder).chmod(0o755)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_weights(folder)


def test_a_step_that_finds_no_room_in_memory_changes_nothing(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = logged(tmp_path / "weights", chain, 2)
    with monkeypatch.context() as full:
        full.setattr("echo2.weights.journaled.writing", no_room_below(memory_module.MEMORY_ROOT))
        with pytest.raises(MemoryFull, match=r"no room to write .*forward"):
            open_weights(folder).apply(chain.payloads[2], chain.snapshots[3].root)
        remove_memory_folder(folder)
        full.setattr("echo2.weights.snapshot.writing", no_room_below(memory_module.MEMORY_ROOT))
        with pytest.raises(MemoryFull, match="no room to write"):
            open_weights(folder)
        end_log(folder)
        assert_is(folder, chain.snapshots[2])
    open_weights(folder).apply(chain.payloads[2], chain.snapshots[3].root)
    assert_is(folder, chain.snapshots[3])


def test_memory_ahead_of_the_log_is_made_anew(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 1)
    Rolling(open_weights(folder).folder).apply(chain.payloads[1], chain.snapshots[2].root)
    assert_is(folder, chain.snapshots[1])


def test_a_fold_makes_the_present_version_the_base(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 3)
    fold_log(folder)
    assert (folder / "snapshot.safetensors").read_bytes() == chain.snapshots[3].path.read_bytes()
    assert list((folder / "log").iterdir()) == []
    assert_is(folder, chain.snapshots[3])
    open_weights(folder).apply(chain.payloads[3], chain.snapshots[4].root)
    remove_memory_folder(folder)
    assert_is(folder, chain.snapshots[4])


def test_a_fold_takes_the_room_of_the_weights_and_one_frame(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, blocks = logged(tmp_path / "weights", chain, 3), list[int]()
    files = folder / "snapshot.safetensors", folder / "folded.safetensors"

    def measure() -> bool:
        blocks.append(sum(one.stat().st_blocks * 512 for one in files))
        return False

    fold_log(folder, measure)
    assert len(blocks) == 8
    assert max(blocks) <= chain.snapshots[0].path.stat().st_size + 2 * FRAME + 3 * 4096, "pages are 4 kB"


def test_a_fold_that_the_end_of_the_node_stops_is_finished_by_the_log(chain: Chain, tmp_path: Path) -> None:
    folder, asked = logged(tmp_path / "weights", chain, 3), list[int]()

    def third() -> bool:
        asked.append(1)
        return len(asked) == 3

    fold_log(folder, third)
    assert (folder / "folding").exists()
    remove_memory_folder(folder)
    assert_is(folder, chain.snapshots[3])
    assert (folder / "snapshot.safetensors").read_bytes() == chain.snapshots[3].path.read_bytes()


def test_the_making_of_the_version_in_memory_can_be_stopped_and_is_begun_anew(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 4)
    remove_memory_folder(folder)
    asked = itertools.count()
    with pytest.raises(Stopped):
        open_weights(folder, lambda: next(asked) >= 2)
    assert next(asked) < 6, "few frames are decoded after that"
    assert not logged_weights.is_in_memory(folder)
    assert_is(folder, chain.snapshots[4])


def test_where_memory_lacks_the_log_is_folded_and_taken_away(chain: Chain, tmp_path: Path, memory: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 3)
    remove_memory_folder(folder)
    end_log(folder)
    assert not has_log(folder)
    assert list(memory.iterdir()) == []
    assert_is(folder, chain.snapshots[3])
    open_weights(folder).apply(chain.payloads[3], chain.snapshots[4].root)
    assert_is(folder, chain.snapshots[4])


def test_a_folder_of_the_build_before_gets_a_log(chain: Chain, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    Rolling.create(folder, chain.snapshots[0]).apply(chain.payloads[0], chain.snapshots[1].root)
    assert len(list((folder / "undo").iterdir())) == 1
    begin_log(folder)
    open_weights(folder).apply(chain.payloads[1], chain.snapshots[2].root)
    assert_is(folder, chain.snapshots[2])
    fold_log(folder)
    remove_memory_folder(folder)
    assert_is(folder, chain.snapshots[2])


def test_a_log_cut_at_any_byte_leaves_an_earlier_version(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 3)
    files = sorted((folder / "log").iterdir())
    whole = [file.read_bytes() for file in files]
    rng, places = random.Random(2), [(1, 0), (1, 7), (2, 1)]
    places += [(at, rng.randrange(len(whole[at]))) for at in (0, 1, 2) for _ in range(12)]
    for at, length in places:
        for file, data in zip(files, whole, strict=True):
            file.unlink(missing_ok=True)
            file.write_bytes(data)
        files[at].write_bytes(whole[at][:length])
        remove_memory_folder(folder)
        weights = open_weights(folder)
        assert_is(folder, chain.snapshots[at])
        assert weights.log is not None
        assert f"{files[at]} is damaged or cut short" in weights.log.loss
        assert sorted((folder / "log").iterdir()) == files[:at]
    for number in range(at, VERSIONS - 1):
        weights.apply(chain.payloads[number], chain.snapshots[number + 1].root)
    assert_is(folder, chain.snapshots[-1])


def test_a_process_without_a_free_descriptor_cuts_no_log(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = logged(tmp_path / "weights", chain, 3)

    def exhausted(path: Path) -> PayloadReader:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr("echo2.weights.diff_log.PayloadReader", exhausted)
        with pytest.raises(OSError, match="Too many open files"):
            open_weights(folder)
    assert_is(folder, chain.snapshots[3])


def test_a_bit_that_rotted_in_a_diff_or_in_the_base_is_no_wrong_weight(chain: Chain, tmp_path: Path) -> None:
    folder = logged(tmp_path / "weights", chain, 3)
    diff = sorted((folder / "log").iterdir())[1]
    data = bytearray(diff.read_bytes())
    data[-9] ^= 4
    diff.unlink()
    diff.write_bytes(data)
    remove_memory_folder(folder)
    assert_is(folder, chain.snapshots[1])
    base = folder / "snapshot.safetensors"
    data = bytearray(base.read_bytes())
    data[-300] ^= 4
    base.write_bytes(data)
    remove_memory_folder(folder)
    with pytest.raises(StoreCorrupt, match="its weights are damaged"):
        open_weights(folder)


def test_a_diff_that_rotted_within_a_fold_is_no_wrong_weight(chain: Chain, tmp_path: Path) -> None:
    folder, asked = logged(tmp_path / "weights", chain, 3), list[int]()
    fold(folder, open_weights(folder).snapshot, lambda: asked.append(1) or len(asked) == 3)  # type: ignore[func-returns-value]
    diff = sorted((folder / "log").iterdir())[1]
    data = diff.read_bytes()
    diff.unlink()
    diff.write_bytes(data[:-20])
    with pytest.raises(StoreCorrupt, match="its log cannot be folded"):
        open_weights(folder)


@pytest.fixture
def private_files() -> Iterator[None]:
    """Let this user alone read new files, also those that a test puts back."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.usefixtures("private_files")
@pytest.mark.parametrize("store", ["on the same disk", "on another"])
def test_cut_at_any_moment_it_is_the_version_before_or_behind(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """A kill leaves the memory as it was, and a power cut takes it."""
    versions = {snapshot.root: snapshot for snapshot in chain.snapshots}
    with quick_folder() as place:
        folder, memory = place / "disk" / "weights", place / "memory"
        memory.mkdir()
        monkeypatch.setattr(memory_module, "MEMORY_ROOT", memory)
        if store == "on the same disk":
            (place / "disk").mkdir()
            for number, payload in enumerate(chain.payloads):
                chain.payloads[number] = Path(shutil.copy(payload, place / "disk"))

        def life() -> Iterator[bytes]:
            Rolling.create(folder, chain.snapshots[0])
            yield chain.snapshots[0].root
            begin_log(folder)
            for number in (0, 1):
                open_weights(folder).apply(chain.payloads[number], chain.snapshots[number + 1].root)
                yield chain.snapshots[number + 1].root
            fold_log(folder)
            yield chain.snapshots[2].root
            open_weights(folder).apply(chain.payloads[2], chain.snapshots[3].root)
            yield chain.snapshots[3].root
            end_log(folder)
            yield chain.snapshots[3].root

        kinds = set()
        for cut in cuts(life(), place):
            if "power cut" in cut.where:
                shutil.rmtree(memory)
                memory.mkdir()
            kinds.add(logged_weights.is_in_memory(folder))
            root = open_weights(folder).root
            assert root in (cut.before, cut.after), cut.where
            assert_is(folder, versions[root])
            if has_log(folder):
                end_log(folder)
                assert_is(folder, versions[root])
        assert kinds == {True, False}
