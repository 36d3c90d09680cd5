"""The frozen base of an adapter: plain and quantised tensors in one file."""

from pathlib import Path

import numpy as np
import pytest

from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import floats_of
from echo2.weights.lora.adapter_config import BASE_FILE
from echo2.weights.lora.frozen_base import BaseFormat, FrozenBase, write_base
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support import adapted, tiny_model

UP = "model.layers.0.mlp.up_proj.weight"


def test_a_plain_base_has_the_weights_of_the_model_in_bfloat16(tmp_path: Path) -> None:
    whole = Snapshot(tiny_model.make(tmp_path / "whole").snapshot)
    write_base(tmp_path / BASE_FILE, whole, "bfloat16")
    base = FrozenBase(tmp_path / BASE_FILE)
    assert [(entry.name, entry.shape) for entry in base.tensors] == [(one.name, one.shape) for one in whole.tensors]
    assert base.aliases == whole.aliases
    for entry in whole.tensors:
        np.testing.assert_array_equal(base.values(entry.name), floats_of(whole.bits(entry.name), "BF16"))
        np.testing.assert_array_equal(base.bits(entry.name).view(np.float32), base.values(entry.name))
    assert not base.formats


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_layers_have_the_format_asked_for_the_embedding_eight_bits_and_vectors_none(
    tmp_path: Path, form: BaseFormat
) -> None:
    base = FrozenBase(adapted.make(tmp_path, form) / BASE_FILE)
    assert base.formats[UP] == form
    assert base.formats["model.embed_tokens.weight"] == "q8_0"
    assert "model.norm.weight" not in base.formats
    shapes = {entry.name: entry.shape for entry in base.tensors}
    assert shapes[UP] == (128, 64)
    assert base.values(UP).shape == (128 * 64,)
    assert base.blocks(UP).shape == (128, 2 * (34 if form == "q8_0" else 18))


def test_a_quantised_base_is_near_the_model_and_smaller(tmp_path: Path) -> None:
    plain, eight, four = (
        FrozenBase(adapted.make(tmp_path / form, form) / BASE_FILE) for form in ("bfloat16", "q8_0", "q4_0")
    )
    wanted = plain.values(UP)
    assert 0 < np.abs(eight.values(UP) - wanted).mean() < np.abs(four.values(UP) - wanted).mean() < 0.02
    sizes = [base.path.stat().st_size for base in (plain, eight, four)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_matrix_whose_rows_are_no_whole_blocks_stays_plain(tmp_path: Path) -> None:
    entry = TensorEntry(name="model.layers.0.odd.weight", dtype="F32", shape=(4, 40))
    with writing_snapshot(tmp_path / "whole", [entry], {}) as writer:
        writer.write(np.arange(160, dtype=np.float32).view(np.uint32))
        writer.finish()
    write_base(tmp_path / BASE_FILE, Snapshot(tmp_path / "whole"), "q4_0")
    base = FrozenBase(tmp_path / BASE_FILE)
    assert not base.formats
    np.testing.assert_array_equal(base.values(entry.name), np.arange(160))


def test_bytes_that_are_no_whole_blocks_are_refused_by_name(tmp_path: Path) -> None:
    entry = TensorEntry(name=f"{UP}.q8_0", dtype="U8", shape=(2, 35))
    with writing_snapshot(tmp_path / BASE_FILE, [entry], {}) as writer:
        writer.write(np.zeros(70, np.uint8))
        writer.finish()
    with pytest.raises(BadSnapshot, match="whole blocks"):
        FrozenBase(tmp_path / BASE_FILE)


def test_a_truncated_base_and_one_of_integers_are_refused(tmp_path: Path) -> None:
    path = adapted.make(tmp_path, "q8_0") / BASE_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadSnapshot):
        FrozenBase(path)
    with pytest.raises(BadSnapshot, match="I64"):
        floats_of(np.zeros(4, np.uint64), "I64")


def test_a_base_tied_to_a_tensor_that_it_lacks_is_refused_by_name(tmp_path: Path) -> None:
    """Before, the engine's process met a KeyError."""
    folder = adapted.make(tmp_path / "model", "q8_0")
    source = Snapshot(folder / BASE_FILE)
    stored = next(entry.name for entry in source.tensors if entry.name.endswith(".q8_0"))
    with writing_snapshot(tmp_path / "tied", source.tensors, {"tied.weight": stored}) as writer:
        for entry in source.tensors:
            writer.write(source.bits(entry.name))
        writer.finish()
    with pytest.raises(BadSnapshot, match=r"a tensor is tied to '.*q8_0', which is not there"):
        FrozenBase(tmp_path / "tied")
