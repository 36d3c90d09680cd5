"""Tell which rows of a tensor this rank has (row_shards.py). A tensor that is not divided has all of them."""

from torch import Tensor
from torch.distributed.tensor import DTensor

from echo2.coordinator.learner.ranks.row_shards import rows_of_rank


def local(tensor: Tensor) -> Tensor:
    """Return this rank's rows, without a copy and without gradient."""
    whole = tensor.detach()
    return whole.to_local() if isinstance(whole, DTensor) else whole


def first_row(tensor: Tensor) -> int:
    """Return the number of this rank's first row."""
    if not isinstance(tensor, DTensor):
        return 0
    mesh = tensor.device_mesh
    return rows_of_rank(tensor.shape[0], mesh.get_local_rank(), mesh.size()).start
