from pathlib import Path

import numpy as np
import pytest
import torch

from echo2.weights import snapshot_parts
from echo2.weights.errors import BadSnapshot
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import entries_of, published_bits, save_tensors

TENSORS = {"a": torch.arange(10.0).reshape(5, 2), "b": torch.zeros(3), "empty": torch.zeros(0, 4), "z": torch.ones(1)}
ALIASES = {"tied": "a"}


def test_a_snapshot_that_several_write_is_that_of_one(tmp_path: Path) -> None:
    whole = save_tensors(TENSORS, tmp_path / "whole", aliases=ALIASES)
    path = tmp_path / "parts"
    partial = snapshot_parts.begin(path, entries_of(TENSORS, dtype=torch.bfloat16, aliases=ALIASES), ALIASES)
    for rows in (slice(3, 5), slice(0, 3)):
        with snapshot_parts.RowWriter(partial) as writer:
            for name in writer.names:
                own = TENSORS[name][rows]
                writer.write(name, min(rows.start, len(TENSORS[name])), published_bits(own))
        assert not path.exists()
    hashes = [snapshot_parts.hashes(partial, [name])[0] for name in sorted(TENSORS)]
    made_in_parts = snapshot_parts.finish(path, hashes)
    assert made_in_parts.root == whole.root
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert Snapshot(path).root == whole.root
    assert not partial.exists()


def test_rows_that_a_tensor_does_not_have_are_refused(tmp_path: Path) -> None:
    partial = snapshot_parts.begin(tmp_path / "s", entries_of(TENSORS, dtype=torch.bfloat16, aliases={}), {})
    with (
        pytest.raises(BadSnapshot, match="'b' has 6 bytes, and 8 were to be written"),
        snapshot_parts.RowWriter(partial) as writer,
    ):
        writer.write("b", 2, np.zeros(2, np.uint16))


def test_a_table_that_is_no_snapshots_is_refused_before_a_file_is_begun(tmp_path: Path) -> None:
    entries = entries_of(TENSORS, dtype=torch.bfloat16, aliases={})
    with pytest.raises(BadSnapshot):
        snapshot_parts.begin(tmp_path / "s", entries, {"tied": "nowhere"})
    assert list(tmp_path.iterdir()) == []
