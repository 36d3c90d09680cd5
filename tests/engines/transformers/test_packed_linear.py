"""Linear layers that compute packed: the same products."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from echo2.engines.transformers import packed_linear
from echo2.engines.transformers.packed_linear import PackedLinear


class Model(nn.Module):
    """A large layer, a small one, and a head that shares its weights with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 400)
        self.inner = nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 20))
        self.head = nn.Linear(400, 1000, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def model() -> Iterator[Model]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.inference_mode():
        model = Model().requires_grad_(False)
        if not packed_linear.pack(Model()):
            pytest.skip("this processor or PyTorch packs no layers")
        yield model


def products(model: Model, rows: Tensor) -> list[Tensor]:
    """Return the products after the first ones, which are computed as plain layers do."""
    enough = torch.zeros(packed_linear.MOST_PLAIN_ROWS, 400)
    model.inner(enough), model.head(enough)
    return [model.inner(rows), model.head(rows)]


@pytest.mark.parametrize("shape", [(1, 400), (8, 400), (333, 400), (3, 5, 400), (400,)])
def test_products_are_those_of_the_plain_layers(model: Model, shape: tuple[int, ...]) -> None:
    rows = torch.randn(shape)
    plain = products(model, rows)
    assert packed_linear.pack(model) == 2
    for one, other in zip(products(model, rows), plain, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * float(other.abs().max()))


def test_large_layers_are_packed_and_hold_the_parameters_they_had(model: Model) -> None:
    names, places = list(model.state_dict()), [tensor.data_ptr() for tensor in model.state_dict().values()]
    packed_linear.pack(model)
    assert [type(layer) for layer in (*model.inner, model.head)] == [PackedLinear, nn.Linear, PackedLinear]
    assert model.head.weight is model.embedding.weight
    assert list(model.state_dict()) == names
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == places


def test_weights_that_change_count_once_their_copy_is_forgotten(model: Model) -> None:
    packed_linear.pack(model)
    rows = torch.randn(8, 400)
    before = products(model, rows)
    for parameter in model.parameters():
        parameter *= 2
    packed_linear.forget(model)
    after = products(model, rows)
    torch.testing.assert_close(after[1], 2 * before[1])
    assert not torch.allclose(after[0], before[0])


def test_a_version_that_computes_few_rows_costs_no_copy(model: Model) -> None:
    packed_linear.pack(model)
    rows = torch.randn(packed_linear.MOST_PLAIN_ROWS // 2, 400)
    products(model, rows)
    packed_linear.forget(model)
    plain = torch.nn.functional.linear(rows, model.head.weight)
    assert all(torch.equal(model.head(rows), plain) for _ in range(2))
    assert model.head._packed is None
    model.head(rows[:1])
    assert model.head._packed is not None


def test_one_product_of_many_rows_is_packed_at_once(model: Model) -> None:
    packed_linear.pack(model)
    model.head(torch.randn(packed_linear.MOST_PLAIN_ROWS + 1, 400))
    assert model.head._packed is not None


def test_nothing_is_packed_that_would_not_gain_or_fit(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_linear.pack(Model().to(torch.bfloat16)) == 0
    assert packed_linear.pack(nn.Sequential(nn.Linear(64, 64))) == 0
    with monkeypatch.context() as patch:
        patch.setattr(packed_linear.platform, "machine", lambda: "arm64")
        assert packed_linear.pack(model) == 0
    monkeypatch.setattr(packed_linear, "available_memory", lambda: 2 * 4 * (400 * 400 + 400 * 1000) - 1)
    assert packed_linear.pack(model) == 0
    assert not [layer for layer in model.modules() if isinstance(layer, PackedLinear)]


def missing(layer: PackedLinear, rows: Tensor) -> Tensor:
    raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")


def refused(layer: PackedLinear, rows: Tensor) -> Tensor:
    raise NotImplementedError("Could not run 'mkldnn::_linear_pointwise'")


def wrong(layer: PackedLinear, rows: Tensor) -> Tensor:
    return torch.nn.functional.linear(rows, layer.weight) * 1.01


@pytest.mark.parametrize("operation", [missing, refused, wrong])
def test_an_operation_that_is_not_there_or_errs_leaves_the_plain_layers(
    operation: object, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackedLinear, "forward", operation)
    assert packed_linear.pack(model) == 0
