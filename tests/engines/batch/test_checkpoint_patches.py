"""Weights and changes in the coordinates of the model's own tensors."""

from pathlib import Path

import numpy as np
import torch

from echo2.engines.batch import checkpoint_patches
from echo2.engines.batch.checkpoint_patches import CheckpointPatch
from echo2.weights.diff import Change
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_tensors
from tests.support import tiny_model
from tests.support.diff_changes import changed


def test_a_snapshot_is_all_of_its_tensors_under_all_of_their_names(tmp_path: Path) -> None:
    model = tiny_model.make(tmp_path)
    snapshot = Snapshot(model.snapshot)
    patches = list(checkpoint_patches.whole(snapshot))
    assert {patch.name for patch in patches} == {entry.name for entry in snapshot.tensors} | {"lm_head.weight"}
    tied = {patch.name: patch for patch in patches}
    assert np.array_equal(tied["lm_head.weight"].bits, tied["model.embed_tokens.weight"].bits)
    assert all(patch.positions is None and len(patch.bits) == patch.tensor.elements for patch in patches)


def test_a_change_written_over_the_old_version_is_the_new_one(tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path)
    before = Snapshot(old.snapshot)
    bits = {entry.name: before.bits(entry.name).copy() for entry in before.tensors}
    new, payload = tiny_model.next_version(old, scale=1e-4)
    after = Snapshot(new.snapshot)
    for patch in checkpoint_patches.patches_of_changes(changed(before, payload), after):
        assert patch.positions is not None
        bits.setdefault(patch.name, bits["model.embed_tokens.weight"].copy())[patch.positions] = patch.bits
    assert all(np.array_equal(bits[entry.name], after.bits(entry.name)) for entry in after.tensors)
    assert np.array_equal(bits["lm_head.weight"], after.bits("model.embed_tokens.weight"))


def test_elements_that_become_nan_are_sent_with_their_whole_tensor(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = torch.tensor([1.0, float("inf"), -float("inf"), float("nan")])
        snapshot = save_tensors({"one": values}, tmp_path / "one", dtype=dtype, aliases={})
        (entry,), bits = snapshot.tensors, snapshot.bits("one")
        for position, whole in ((0, False), (1, False), (2, False), (3, True)):
            change = Change(tensor=entry, index=np.array([position]), bits=bits[position : position + 1])
            (patch,) = checkpoint_patches.patches_of_changes([change], snapshot)
            assert (patch.positions is None) == whole
            assert len(patch.bits) == (4 if whole else 1)


def test_the_changes_of_a_tensor_over_several_frames_are_one_patch(tmp_path: Path) -> None:
    snapshot = save_tensors({"a": torch.ones(6), "b": torch.ones(2)}, tmp_path / "two", aliases={})
    entries = {entry.name: entry for entry in snapshot.tensors}
    one = snapshot.bits("b")[:1]
    changes = [Change(tensor=entries[name], index=np.array([at]), bits=one) for name, at in
               (("a", 1), ("a", 4), ("b", 0))]  # fmt: skip
    patches = list(checkpoint_patches.patches_of_changes(changes, snapshot))
    assert [(patch.name, patch.positions.tolist()) for patch in patches if patch.positions is not None] == [
        ("a", [1, 4]), ("b", [0]),
    ]  # fmt: skip


def test_parts_are_bounded_and_never_mix_whole_tensors_with_changes() -> None:
    entry = TensorEntry(name="a", dtype="F32", shape=(4,))
    full = CheckpointPatch(entry, "a", np.zeros(4, np.uint32), None)
    some = CheckpointPatch(entry, "a", np.zeros(1, np.uint32), np.zeros(1, np.int64))
    assert (full.nbytes, some.nbytes) == (16, 12)
    parts = list(checkpoint_patches.in_parts([full, full, some, some, full], 24))
    assert [len(part) for part in parts] == [1, 1, 2, 1]
    assert list(checkpoint_patches.in_parts([], 24)) == []
