from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import EngineError
from echo2.weights.diff import Change, encode
from echo2.weights.errors import BadSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import begin_log, fold_log
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import nudged, random_table, read_table, write_table


def versions(folder: Path) -> tuple[Path, Snapshot, Snapshot, Path]:
    """Return a folder of weights at the first of two versions, both as files, and the payload between them."""
    table = random_table(1)
    old = write_table(folder / "old.snapshot", table)
    new = write_table(folder / "new.snapshot", nudged(table, 2))
    encode(old, new, folder / "payload")
    Rolling.create(folder / "rolling", old)
    return folder / "rolling", old, new, folder / "payload"


def test_a_step_gives_its_changes_and_the_next_snapshot(tmp_path: Path) -> None:
    folder, old, new, payload = versions(tmp_path)
    weights = SteppedWeights(folder)
    assert weights.describe_loaded(10, 40).root == old.root
    copy = old.bits("table").copy()
    for change in weights.step_by(payload, new.root, 1):
        copy[change.index] = change.bits
    assert np.array_equal(copy, new.bits("table"))
    assert np.array_equal(read_table(weights.snapshot), read_table(new))
    loaded = weights.describe_loaded(10, 40)
    assert (loaded.root, loaded.behind, loaded.ahead, loaded.parameters, loaded.nbytes) == (
        new.root, [old.root], [], 10, 40,
    )  # fmt: skip
    for changes in weights.step_to(old.root):
        for change in changes:
            copy[change.index] = change.bits
    assert np.array_equal(copy, old.bits("table"))
    assert (weights.describe_loaded(0, 0).root, weights.describe_loaded(0, 0).ahead) == (old.root, [new.root])
    assert [next(changes).tensor.name for changes in weights.step_to(new.root)] == ["table"]
    assert list(weights.step_to(new.root)) == []
    with pytest.raises(WrongBase, match="no kept step leads"):
        list(weights.step_to(bytes(32)))


def test_a_file_is_not_stepped(tmp_path: Path) -> None:
    _, old, new, payload = versions(tmp_path)
    weights = SteppedWeights(old.path)
    assert weights.describe_loaded(0, 0).behind == []
    with pytest.raises(EngineError, match="cannot be stepped: load a folder"):
        weights.step_by(payload, new.root, 1)


def test_a_folder_whose_bytes_are_damaged_is_refused(tmp_path: Path) -> None:
    folder, *_ = versions(tmp_path)
    path = folder / "snapshot.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadSnapshot, match="is damaged"):
        SteppedWeights(folder)


def chain(folder: Path, steps: int) -> tuple[Path, list[Snapshot], list[Path]]:
    """Make a folder of weights, its first version and so many further ones, and the payloads between them."""
    snapshots = [write_table(folder / "0.safetensors", random_table(1))]
    payloads = []
    for number in range(1, steps + 1):
        new = write_table(folder / f"{number}.safetensors", nudged(read_table(snapshots[-1]), number))
        payloads.append(folder / f"{number}.payload")
        encode(snapshots[-1], new, payloads[-1])
        snapshots.append(new)
    Rolling.create(folder / "held", snapshots[0])
    return folder / "held", snapshots, payloads


def test_a_second_engine_follows_by_the_changes_that_the_first_one_made(tmp_path: Path) -> None:
    place, snapshots, payloads = chain(tmp_path, 3)
    first, second = SteppedWeights(place), SteppedWeights(place)
    made = [written(first.step_by(payload, snapshots[number + 1].root, 9)) for number, payload in enumerate(payloads)]
    with pytest.raises(WrongBase, match="another engine has moved these weights"):
        second.step_by(payloads[0], snapshots[1].root, 9)
    assert [written(changes) for changes in second.step_to(snapshots[3].root)] == made
    assert second.snapshot.root == snapshots[3].root
    assert list(second.step_to(snapshots[3].root)) == []


def test_engines_over_a_log_load_step_and_follow_alike(tmp_path: Path) -> None:
    place, snapshots, payloads = chain(tmp_path, 3)
    begin_log(place)
    first, second = SteppedWeights(place), SteppedWeights(place)
    steps = [written(first.step_by(payload, snapshots[number + 1].root, 9)) for number, payload in enumerate(payloads)]
    assert (place / "snapshot.safetensors").read_bytes() == snapshots[0].path.read_bytes()
    assert [written(changes) for changes in second.step_to(snapshots[3].root)] == steps
    fold_log(place)
    third = SteppedWeights(place)
    assert third.snapshot.root == second.snapshot.root == snapshots[3].root
    with pytest.raises(WrongBase, match="no step is kept"):
        list(third.step_to(snapshots[2].root))


def test_an_engine_too_far_behind_is_told_to_load_anew(tmp_path: Path) -> None:
    place, snapshots, payloads = chain(tmp_path, 3)
    first, second = SteppedWeights(place), SteppedWeights(place)
    for number, payload in enumerate(payloads):
        first.step_by(payload, snapshots[number + 1].root, 2)
    with pytest.raises(WrongBase, match="load the weights anew"):
        list(second.step_to(snapshots[3].root))


def test_a_step_in_which_another_engine_was_killed_is_finished_by_the_one_that_steps_next(tmp_path: Path) -> None:
    place, snapshots, payloads = chain(tmp_path, 2)
    first, second = SteppedWeights(place), SteppedWeights(place)
    first.step_by(payloads[0], snapshots[1].root, 9)
    (journal,) = (place / "undo").iterdir()
    journal.rename(place / "forward")
    (place / "snapshot.safetensors").write_bytes(snapshots[0].path.read_bytes())
    assert len(list(second.step_to(snapshots[1].root))) == 1
    assert Snapshot(place / "snapshot.safetensors").root == snapshots[1].root


def written(changes: Iterable[Change]) -> list[tuple[str, list[int], list[int]]]:
    """Return changes in plain values."""
    return [(one.tensor.name, one.index.tolist(), one.bits.tolist()) for one in changes]
