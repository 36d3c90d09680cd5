"""Adapters in the engine on transformers: base and adapter give the policy, and a version is the adapter alone."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.plays.direct import generate
from echo2.engines.engine import EngineError, Job, Sample
from echo2.engines.transformers import packed_linear
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.low_rank import LowRankLinear, adapt
from echo2.weights.diff import encode
from echo2.weights.errors import BadSnapshot, WrongBase
from echo2.weights.hf_import import floats_of
from echo2.weights.journaled import Rolling
from echo2.weights.lora.adapter_config import BASE_FILE, read_config
from echo2.weights.lora.frozen_base import BaseFormat, FrozenBase, write_base
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_tensors
from tests.support import adapted, tiny_model
from tests.support.tiny_model import job

MARGIN = 5e-4


def loaded(folder: Path, weights: Path) -> TransformersEngine:
    engine = TransformersEngine()
    engine.load(folder, weights)
    return engine


def merged(folder: Path, version: Snapshot) -> Path:
    """Write the whole model that base and adapter are together; return the folder of it."""
    config, base = read_config(folder), FrozenBase(folder / BASE_FILE)
    assert config is not None
    tensors = {one.name: torch.from_numpy(base.values(one.name)).view(one.shape) for one in base.tensors}
    parts = {
        one.name: torch.from_numpy(floats_of(version.bits(one.name), one.dtype)).view(one.shape)
        for one in version.tensors
    }
    for name in config.targets(name.removesuffix(".weight") for name in list(tensors)):
        inner, outer = (parts[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        tensors[f"{name}.weight"] += config.scaling * outer @ inner
    whole = folder / "merged"
    whole.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(folder / name, whole / name)
    save_tensors(tensors, whole / "weights", dtype=torch.float32, aliases=base.aliases)
    return whole


@pytest.mark.parametrize("form", ["bfloat16", "q8_0", "q4_0"])
def test_tokens_are_those_of_the_whole_model_that_base_and_adapter_are_together(
    tmp_path: Path, form: BaseFormat
) -> None:
    folder = adapted.make(tmp_path, form)
    version = adapted.trained(folder)
    samples = generate(loaded(folder, version.path), job(3))
    whole = merged(folder, version)
    scores = loaded(whole, whole / "weights").score(job(3), samples)
    for score, sample in zip(scores, samples, strict=True):
        assert max(score.margins) <= MARGIN
        assert list(score.logprobs) == pytest.approx(sample.logprobs, abs=1e-4)
    first = loaded(folder, folder / "model.safetensors").score(job(3), samples)
    assert max(max(score.margins) for score in first) > MARGIN, "the adapter counts: version 0 would choose others"


def test_the_first_version_is_the_base_itself(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path / "adapted")
    plain = tiny_model.make(tmp_path / "whole")
    assert same(generate(loaded(folder, folder / "model.safetensors"), job(1)),
                generate(loaded(plain.folder, plain.snapshot), job(1)))  # fmt: skip


def same(one: list[Sample], other: list[Sample]) -> bool:
    return [sample.tokens for sample in one] == [sample.tokens for sample in other]


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.slow_but("False")
def test_a_step_by_a_diff_of_the_adapter_gives_what_loading_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs: bool
) -> None:
    if packs:
        monkeypatch.setattr(packed_linear, "LEAST_PACKED_WEIGHTS", 1)
        monkeypatch.setattr(packed_linear, "MOST_PLAIN_ROWS", 0)
    folder = adapted.make(tmp_path / "model")
    first, second = Snapshot(folder / "model.safetensors"), adapted.trained(folder)
    encode(first, second, tmp_path / "payload")
    Rolling.create(tmp_path / "stepped", first)
    engine = loaded(folder, tmp_path / "stepped")
    before = generate(engine, job(2))
    stepped = engine.step_by(tmp_path / "payload", second.root, keep=1)
    assert stepped.root == second.root
    assert same(generate(engine, job(2)), generate(loaded(folder, second.path), job(2)))
    engine.step_to(first.root)
    assert same(generate(engine, job(2)), before)


def test_packed_copies_of_the_base_outlive_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "LEAST_PACKED_WEIGHTS", 1)
    monkeypatch.setattr(packed_linear, "MOST_PLAIN_ROWS", 0)
    model = nn.ModuleDict({"q_proj": LowRankLinear(nn.Linear(64, 64), 4, 1.0)})
    if not packed_linear.pack(model):
        pytest.skip("this processor or PyTorch packs no layers")
    with torch.inference_mode():
        model["q_proj"](torch.ones(200, 64))
    packed_linear.forget(model)
    layer = model["q_proj"]
    assert layer.base._packed is not None
    assert layer.lora_A._packed is None
    assert layer.lora_B._packed is None


def test_a_whole_model_s_version_and_another_rank_are_refused_and_lose_nothing(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path / "one")
    other = adapted.make(tmp_path / "two", rank=8)
    engine = TransformersEngine()
    for wrong in (tiny_model.make(tmp_path / "whole").snapshot, other / "model.safetensors"):
        with pytest.raises(BadSnapshot):
            engine.load(folder, wrong)
    encode(Snapshot(other / "model.safetensors"), adapted.trained(other), tmp_path / "payload")
    Rolling.create(tmp_path / "stepped", Snapshot(folder / "model.safetensors"))
    engine.load(folder, tmp_path / "stepped")
    with pytest.raises(WrongBase):
        engine.step_by(tmp_path / "payload", adapted.trained(other).root, keep=1)
    assert generate(engine, job(0))


def test_a_base_of_another_model_and_targets_that_are_no_linear_layers_are_refused(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path / "model")
    small = nn.ModuleDict({"q_proj": nn.Linear(8, 8)})
    with pytest.raises(BadSnapshot, match="another model"):
        adapt(small, folder)
    lacking = tmp_path / "lacking"
    shutil.copytree(folder, lacking)
    whole = Snapshot(tiny_model.make(tmp_path / "whole").snapshot)
    whole.tensors = [one for one in whole.tensors if "up_proj" not in one.name]
    write_base(lacking / BASE_FILE, whole, "bfloat16")
    with pytest.raises(EngineError, match="up_proj"):
        loaded(lacking, lacking / "model.safetensors")
    config = (folder / "adapter_config.json").read_text()
    (folder / "adapter_config.json").write_text(config.replace('"q_proj"', '"embed_tokens"'))
    with pytest.raises(EngineError, match="takes no adapter"):
        loaded(folder, folder / "model.safetensors")


def test_a_lost_or_truncated_base_is_a_fault_of_the_folder_and_not_of_the_version(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path, "q4_0")
    whole = (folder / BASE_FILE).read_bytes()
    (folder / BASE_FILE).write_bytes(whole[:-40])
    with pytest.raises(EngineError, match="fetches damaged files"):
        loaded(folder, folder / "model.safetensors")
    (folder / BASE_FILE).unlink()
    with pytest.raises(EngineError, match=BASE_FILE):
        loaded(folder, folder / "model.safetensors")


def test_a_base_that_float16_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path)
    base = FrozenBase(folder / BASE_FILE)
    tensors = {one.name: torch.from_numpy(base.values(one.name)).view(one.shape).clone() for one in base.tensors}
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = 70_000
    save_tensors(tensors, folder / BASE_FILE, aliases=base.aliases)
    with pytest.raises(EngineError, match=r"layers\.1\.mlp\.up_proj"):
        TransformersEngine(dtype="float16").load(folder, folder / "model.safetensors")


def test_greedy_and_sampled_groups_run_beside_each_other(tmp_path: Path) -> None:
    engine = loaded(adapted.make(tmp_path, "q8_0"), adapted.trained(tmp_path).path)
    jobs: list[Job] = [job(0), job(1, samples=2)]
    assert [len(generate(engine, one)) for one in jobs] == [8, 2]
