from pathlib import Path

import numpy as np
import pytest

from engines.engine import EngineError
from engines.stepped_weights import SteppedWeights
from tests.support.bigram import nudged, random_table, read_table, write_table
from weights.diff import encode
from weights.errors import BadSnapshot, WrongBase
from weights.journaled import Rolling
from weights.snapshot import Snapshot


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
    assert weights.loaded(10, 40).root == old.root
    copy = old.bits("table").copy()
    for change in weights.step_by(payload, new.root, 1):
        copy[change.index] = change.bits
    assert np.array_equal(copy, new.bits("table"))
    assert np.array_equal(read_table(weights.snapshot), read_table(new))
    loaded = weights.loaded(10, 40)
    assert (loaded.root, loaded.behind, loaded.ahead, loaded.parameters, loaded.nbytes) == (
        new.root, [old.root], [], 10, 40,
    )  # fmt: skip
    for changes in weights.step_to(old.root):
        for change in changes:
            copy[change.index] = change.bits
    assert np.array_equal(copy, old.bits("table"))
    assert (weights.loaded(0, 0).root, weights.loaded(0, 0).ahead) == (old.root, [new.root])
    assert [next(changes).tensor.name for changes in weights.step_to(new.root)] == ["table"]
    assert list(weights.step_to(new.root)) == []
    with pytest.raises(WrongBase, match="no kept step leads"):
        list(weights.step_to(bytes(32)))


def test_a_file_is_not_stepped(tmp_path: Path) -> None:
    _, old, new, payload = versions(tmp_path)
    weights = SteppedWeights(old.path)
    assert weights.loaded(0, 0).behind == []
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
