from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from echo2.coordinator.learner.checkpoints.row_sources import CheckpointRows, SnapshotRows
from echo2.coordinator.learner.ranks.row_shards import rows_of_rank
from echo2.weights.errors import BadSnapshot
from echo2.weights.torch_io import save_tensors


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 7, 16])
def test_rows_are_cut_as_torch_cuts_them(rows: int, ranks: int) -> None:
    cut = [range(*rows_of_rank(rows, rank, ranks)) for rank in range(ranks)]
    assert [row for part in cut for row in part] == [*range(rows)]
    if rows:
        chunks = torch.arange(rows).chunk(ranks)
        assert [list(part) for part in cut if part] == [chunk.tolist() for chunk in chunks]


def written(folder: Path, whole: dict[str, torch.Tensor], ranks: int) -> list[Path]:
    """Write the files of so many ranks."""
    files = []
    for rank in range(ranks):
        part = {}
        for name, tensor in whole.items():
            if name.startswith("random"):
                part |= {name: tensor} if rank == 0 else {}
            else:
                part[name] = tensor[slice(*rows_of_rank(len(tensor), rank, ranks))].clone() if tensor.ndim else tensor
        files.append(folder / f"{ranks}-{rank}")
        save_file(part, files[-1])
    return files


@pytest.mark.parametrize("readers", [1, 2, 3, 5])
@pytest.mark.parametrize("writers", [1, 2, 4])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path: Path, writers: int, readers: int) -> None:
    whole = {
        "master.w": torch.arange(14.0).reshape(7, 2),
        "exp_avg.w": torch.arange(14.0).reshape(7, 2) + 0.5,
        "master.norm": torch.arange(3.0),
        "updates.w": torch.tensor(9.0),
        "random.cpu": torch.arange(5, dtype=torch.uint8),
    }
    files = written(tmp_path, whole, writers)
    for rank in range(readers):
        own = CheckpointRows(files, rank, readers)
        assert own.keys() == whole.keys()
        for name, tensor in whole.items():
            divided = tensor.ndim and not name.startswith("random")
            wanted = tensor[slice(*rows_of_rank(len(tensor), rank, readers))] if divided else tensor
            torch.testing.assert_close(own[name], wanted, rtol=0, atol=0)
    assert CheckpointRows(files).get("master.other") is None


def test_a_snapshot_gives_rows_of_its_tensors_by_any_of_their_names(tmp_path: Path) -> None:
    weight = torch.arange(15.0).reshape(5, 3)
    snapshot = save_tensors({"b": weight, "count": torch.arange(4)}, tmp_path / "s", aliases={})
    names = {"a": ("a", "b"), "count": ("count",), "c": ("c",)}
    own = SnapshotRows(snapshot, names, 1, 2)
    assert own.keys() == {"master.a", "master.count"}
    torch.testing.assert_close(own["master.a"], weight[3:])
    with pytest.raises(BadSnapshot, match="no numbers to compute with"):
        own["master.count"]
