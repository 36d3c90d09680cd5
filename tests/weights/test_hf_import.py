"""Model folders in the layout of hubs, read without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from echo2.weights import hf_import
from echo2.weights.documents import DType, TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import bf16_of, import_model, stored_headers, tensor_hashes
from echo2.weights.snapshot import Snapshot
from tests.support.paths import ROOT

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def floats(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.linspace(-2, 2, count, dtype=np.float32)


def entry(name: str, dtype: DType, *shape: int) -> TensorEntry:
    return TensorEntry(name=name, dtype=dtype, shape=shape)


def test_a_single_file_in_any_order_becomes_a_snapshot(folder: Path, tmp_path: Path) -> None:
    # The library orders by width of dtype, not by name.
    save_file({"b": floats(6).reshape(2, 3), "a": np.ones(3, np.uint8)}, folder / "model.safetensors")
    snapshot = import_model(folder, tmp_path / "s")
    assert snapshot.tensors == [entry("a", "U8", 3), entry("b", "F32", 2, 3)]
    assert snapshot.bits("b").tobytes() == floats(6).tobytes()
    with pytest.raises(BadSnapshot, match="import_model"):
        Snapshot(folder / "model.safetensors")


def test_shards_give_the_root_of_the_single_file(folder: Path, tmp_path: Path) -> None:
    save_file({"a": floats(5)}, folder / "one.safetensors")
    save_file({"b": floats(7)}, folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    sharded = import_model(folder, tmp_path / "sharded")
    save_file({"a": floats(5), "b": floats(7)}, folder / "model.safetensors")
    assert import_model(folder, tmp_path / "single").root == sharded.root


def test_a_table_picks_tensors_and_casts_them(folder: Path, tmp_path: Path) -> None:
    save_file({"w": floats(9), "head": floats(9)}, folder / "model.safetensors")
    snapshot = import_model(folder, tmp_path / "s", [entry("w", "BF16", 9)], {"head": "w"})
    assert snapshot.bits("w").tolist() == bf16_of(floats(9).view(np.uint32)).tolist()
    assert snapshot.aliases == {"head": "w"}


@given(hnp.arrays(np.uint32, 50))
def test_the_cast_is_to_the_nearest_and_to_even_on_a_tie(bits: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    for wide, narrow in zip(bits.tolist(), bf16_of(bits).tolist(), strict=True):
        below = wide >> 16
        rest = wide & 0xFFFF
        up = rest > 0x8000 or (rest == 0x8000 and below & 1)
        is_nan = (wide & 0x7FFFFFFF) > 0x7F800000
        assert narrow == (0x7FC0 if is_nan else below + bool(up))


@given(st.sampled_from([0x7F800000, 0xFF800000, 0x00000000, 0x80000000, 0x7F7FFFFF, 0x00000001, 0x7FC12345]))
def test_the_cast_of_special_values(wide: int) -> None:
    expected = {0x7F7FFFFF: 0x7F80, 0x00000001: 0, 0x7FC12345: 0x7FC0}.get(wide, wide >> 16)
    assert bf16_of(np.array([wide], np.uint32)).tolist() == [expected]


BAD_INDEX: dict[str, str] = {
    "not JSON": "{",
    "no weight map": "{}",
    "a list": "[]",
    "a map that is a list": '{"weight_map": []}',
    "a shard that is a number": '{"weight_map": {"a": 1}}',
    "a shard that is a list": '{"weight_map": {"a": []}}',
    "a shard that is not there": '{"weight_map": {"a": "gone.safetensors"}}',
    "a shard outside the folder": '{"weight_map": {"a": "../outside.safetensors"}}',
}


@pytest.mark.parametrize("case", BAD_INDEX)
def test_a_false_shard_index_is_refused(folder: Path, tmp_path: Path, case: str) -> None:
    save_file({"a": floats(3)}, tmp_path / "outside.safetensors")
    (folder / INDEX).write_text(BAD_INDEX[case])
    with pytest.raises(BadSnapshot, match="download"):
        import_model(folder, tmp_path / "s")
    assert not (tmp_path / "s").exists()


WRONG_TABLE: dict[str, TensorEntry] = {
    "missing": entry("other", "F32", 3),
    "reshaped": entry("a", "F32", 1, 3),
    "of a dtype that needs a guess": entry("a", "F16", 3),
}


@pytest.mark.parametrize("case", WRONG_TABLE)
def test_a_folder_that_does_not_fit_the_table_is_refused(folder: Path, tmp_path: Path, case: str) -> None:
    save_file({"a": floats(3)}, folder / "model.safetensors")
    with pytest.raises(BadSnapshot, match="another model"):
        import_model(folder, tmp_path / "s", [WRONG_TABLE[case]])


def test_an_empty_folder_is_refused_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSnapshot, match="download a safetensors model"):
        import_model(folder, tmp_path / "s")


def test_only_the_file_for_tensors_imports_torch() -> None:
    program = (
        "import sys, echo2.weights.diff, echo2.weights.hf_import, echo2.weights.update_path, echo2.weights.store\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)


def test_a_file_that_is_cut_short_while_it_is_read_is_a_fault_of_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user of a shared cache, or a download that begins again: the process ended by a bus error."""
    file, check_fit = folder / "model.safetensors", hf_import.check_fit

    def cut(*arguments: object) -> None:
        check_fit(*arguments)  # type: ignore[arg-type]
        os.truncate(file, 4096)

    save_file({"a": floats(1 << 20)}, file)
    tensors = stored_headers(folder)
    monkeypatch.setattr(hf_import, "check_fit", cut)
    for read in (lambda: tensor_hashes(folder, tensors), lambda: import_model(folder, tmp_path / "s")):
        save_file({"a": floats(1 << 20)}, file)
        with pytest.raises(BadSnapshot, match="cut short while it was read"):
            read()
    assert not (tmp_path / "s").exists()
