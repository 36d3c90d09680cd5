import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from echo2.coordinator.learner.checkpoints import checkpoint
from echo2.coordinator.learner.checkpoints.checkpoint import (
    Base,
    CheckpointError,
    State,
    TensorFile,
    write_tensors,
    write_whole,
)
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.runtime.errors import DiskFull
from tests.support.cuts import cuts
from tests.support.quick_disk import quick_folder


def state(step: int) -> State:
    edge = ExportedEdge(base=step - 1, base_root=b"\x01" * 32, payload="/learner/edge")
    export = Export(version=step, root=b"\x02" * 32, snapshot="/learner/snapshot", edges=[edge], seconds=0.5)
    return State(
        step=step,
        era=3,
        steps=step,
        drawn=[b"%d" % number for number in range(step)],
        export=export,
        published=[Base(step - 1, b"\x01" * 32, "/learner/before")],
        anchor=Base(0, b"\x00" * 32, "/learner/base"),
    )


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"master.w": torch.full((3, 2), float(step)), "random.cpu": torch.arange(5, dtype=torch.uint8)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        saved(tmp_path, state(step), tensors(step))
    return tmp_path


def silent(sentence: str) -> None:
    pytest.fail(f"nothing was to be reported: {sentence}")


def saved(folder: Path, of: State, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint.save(folder, of.era, of.step, lambda: of, lambda partial: write_whole(partial, tensors))


def test_a_checkpoint_is_loaded_as_it_was_saved_and_the_newest_two_are_kept(folder: Path) -> None:
    loaded = checkpoint.load(folder, silent)
    assert loaded.state == state(3)
    assert loaded.tensors.keys() == tensors(3).keys()
    assert all(torch.equal(tensor, tensors(3)[name]) for name, tensor in loaded.tensors.items())
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-000000000003-000000000002",
        "checkpoint-000000000003-000000000003",
    ]


def test_without_any_checkpoint_load_returns_none(tmp_path: Path) -> None:
    assert checkpoint.load(tmp_path, silent) is None


def test_a_later_era_is_newer_at_any_step(folder: Path) -> None:
    saved(folder, msgspec.structs.replace(state(1), era=4), tensors(1))
    loaded = checkpoint.load(folder, silent)
    assert (loaded.state.era, loaded.state.step) == (4, 1)


def test_saving_a_step_again_replaces_it(folder: Path) -> None:
    saved(folder, state(3), tensors(7))
    loaded = checkpoint.load(folder, silent)
    assert torch.equal(loaded.tensors["master.w"], tensors(7)["master.w"])


def cut(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-1])


def flip(name: str, at: int) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[at] ^= 1
        (path / name).write_bytes(data)

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a torn tensor file": cut("tensors.safetensors"),
    "a torn state": cut("state.msgpack"),
    "a flipped bit in a weight": flip("tensors.safetensors", -3),
    "a flipped bit in the tensors' header": flip("tensors.safetensors", 20),
    "a flipped bit in the state": flip("state.msgpack", 40),
    "a flipped bit in a hash": flip("state.msgpack", -3),
    "tensors that are not there": lambda path: (path / "tensors.safetensors").unlink(),
    "a state that is not there": lambda path: (path / "state.msgpack").unlink(),
    "a state that is a pickle": lambda path: (path / "state.msgpack").write_bytes(b"\x80\x04cos\nsystem\n."),
    "the tensors of another checkpoint": lambda path: shutil.copy(
        path.with_name("checkpoint-000000000003-000000000002") / "tensors.safetensors", path / "tensors.safetensors"
    ),
}


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_newest_checkpoint_is_reported_and_set_aside_and_the_one_before_is_used(
    sentence: str, folder: Path
) -> None:
    DAMAGES[sentence](folder / "checkpoint-000000000003-000000000003")
    said: list[str] = []
    loaded = checkpoint.load(folder, said.append)
    assert loaded.state == state(2)
    assert len(said) == 1
    assert "set aside as corrupt-checkpoint-000000000003-000000000003" in said[0]
    assert checkpoint.load(folder, silent) is not None, "it is reported once"


def test_if_no_checkpoint_can_be_read_the_learner_never_starts_afresh_silently(folder: Path) -> None:
    for path in folder.iterdir():
        cut("tensors.safetensors")(path)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="put one back from a backup"):
            checkpoint.load(folder, lambda sentence: None)


def test_leftovers_of_an_interrupted_save_are_removed(folder: Path) -> None:
    for name in (".checkpoint-000000000003-000000000004.partial", ".checkpoint-000000000003-000000000001.removed"):
        shutil.copytree(folder / "checkpoint-000000000003-000000000003", folder / name)
    assert checkpoint.load(folder, silent) is not None
    assert not list(folder.glob(".*"))


def test_killed_at_any_moment_a_save_leaves_the_checkpoint_before_or_the_new_one() -> None:
    with quick_folder() as folder:

        def life() -> Iterator[int]:
            yield 0
            for step in (1, 2, 3, 4):
                saved(folder, state(step), tensors(step))
                yield step

        for cut in cuts(life(), folder):
            loaded = checkpoint.load(folder, silent)
            if loaded is None:
                assert cut.before == 0, cut.where
            else:
                assert loaded.state in (state(cut.before), state(cut.after)), cut.where
                assert torch.equal(loaded.tensors["master.w"], tensors(loaded.state.step)["master.w"]), cut.where
            saved(folder, state(5), tensors(5))
            again = checkpoint.load(folder, silent)
            assert again.state == state(5), cut.where


PARTS = ("tensors-00001-of-00002.safetensors", "tensors-00002-of-00002.safetensors")


def in_two_parts(partial: Path) -> list[TensorFile]:
    """Write the tensors of step 4 as two ranks do."""
    whole = tensors(4)
    first = {"master.w": whole["master.w"][:2], "random.cpu": whole["random.cpu"]}
    return [
        write_tensors(partial / name, part)
        for name, part in zip(PARTS, (first, {"master.w": whole["master.w"][2:]}), strict=True)
    ]


def test_a_checkpoint_of_two_ranks_is_read_whole_and_has_the_form_of_that_of_one_rank(folder: Path) -> None:
    sealed = msgspec.msgpack.decode((folder / "checkpoint-000000000003-000000000003/state.msgpack").read_bytes())
    assert sealed.keys() == {"format", "body", "body_hash", "files"}
    assert (sealed["format"], [name for name, _ in sealed["files"]]) == (2, ["tensors.safetensors"])
    path = checkpoint.save(folder, 3, 4, lambda: state(4), in_two_parts)
    assert {one.name for one in path.iterdir()} == {*PARTS, "state.msgpack"}
    loaded = checkpoint.load(folder, silent)
    assert loaded.state == state(4)
    assert {name: tensor.tolist() for name, tensor in loaded.tensors.items()} == {
        name: tensor.tolist() for name, tensor in tensors(4).items()
    }


def rename_in_state(old: bytes, new: bytes) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        state_file = path / "state.msgpack"
        data = state_file.read_bytes()
        assert old in data
        state_file.write_bytes(data.replace(old, new))

    return damage


PART_DAMAGES: dict[str, Callable[[Path], object]] = {
    "a torn part": cut(PARTS[0]),
    "a flipped bit in a part": flip(PARTS[1], -1),
    "a part that is not there": lambda path: (path / PARTS[1]).unlink(),
    "a part's name that is no text": rename_in_state(b"tensors-00002", b"tensors-000\xb02"),
    "a part's name that is no path": rename_in_state(b"tensors-00002", b"tensors-000\x002"),
}


@pytest.mark.parametrize("damage", PART_DAMAGES.values(), ids=PART_DAMAGES.keys())
def test_a_damaged_part_of_a_checkpoint_of_two_ranks_is_noticed(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(checkpoint.save(folder, 3, 4, lambda: state(4), in_two_parts))
    said: list[str] = []
    loaded = checkpoint.load(folder, said.append)
    assert loaded.state == state(3)
    assert len(said) == 1


def test_a_save_on_a_full_disk_fails_and_leaves_the_others_intact(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **of: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_tensors", full)
    with pytest.raises(DiskFull, match="free space there"):
        saved(folder, state(4), tensors(4))
    monkeypatch.undo()
    loaded = checkpoint.load(folder, silent)
    assert loaded.state.step == 3
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("fields", [{"format": 1, "tensors_hash": bytes(32)}, {"format": 3}])
def test_a_checkpoint_of_another_build_is_refused_and_stays_as_it_was(folder: Path, fields: dict[str, object]) -> None:
    saved(folder, state(4), tensors(4))
    path = folder / "checkpoint-000000000003-000000000004" / "state.msgpack"
    sealed = msgspec.msgpack.decode(path.read_bytes())
    del sealed["files"]
    path.write_bytes(msgspec.msgpack.encode(sealed | fields))
    before = path.read_bytes()
    words = rf"another build of echo2 made .* \(format {fields['format']}, not 2\): run the build that made it"
    with pytest.raises(CheckpointError, match=words):
        checkpoint.load(folder, silent)
    assert path.read_bytes() == before


def test_the_state_on_disk_is_pinned(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/learner_checkpoint.json").read_text())
    assert msgspec.msgpack.encode(state(2)).hex() == vector["state"]
    assert msgspec.msgpack.decode(bytes.fromhex(vector["state"]), type=State) == state(2)
    of_run = msgspec.structs.replace(state(2), run="0a" * 16)
    assert msgspec.msgpack.encode(of_run).hex() == vector["of_run"]


def test_a_state_that_cannot_be_finished_leaves_the_checkpoint_before(folder: Path) -> None:
    """This happens when the disk is full for the export that the checkpoint would name."""
    before = checkpoint.load(folder, print)

    def finished() -> State:
        raise DiskFull("no room for the export")

    with pytest.raises(DiskFull, match="no room for the export"):
        checkpoint.save(folder, 0, 9, finished, lambda partial: write_whole(partial, tensors(9)))
    after = checkpoint.load(folder, print)
    assert before is not None
    assert after.state == before.state
    assert not list(folder.glob(".*"))
