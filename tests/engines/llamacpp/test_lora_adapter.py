"""Adapters in llama.cpp: the tokens of the engine on transformers, and a version is the adapter alone."""

from pathlib import Path

import pytest

from benchmarks.plays import direct
from echo2.engines.engine import EngineError, Loaded
from echo2.engines.llamacpp.engine import LlamaEngine, create
from echo2.engines.transformers.engine import TransformersEngine
from echo2.weights.diff import encode
from echo2.weights.errors import BadSnapshot
from echo2.weights.journaled import Rolling
from echo2.weights.lora.adapter_config import BASE_FILE, CONFIG
from echo2.weights.lora.frozen_base import BaseFormat
from echo2.weights.snapshot import Snapshot
from tests.support import adapted, llama_cpp, tiny_model
from tests.support.llama_cpp import DEVICE, MODELS
from tests.support.tiny_model import job

pytestmark = llama_cpp.needed
DRIFT = 5e-5 if DEVICE == "cpu" else 2e-2
JOBS = [job(index, limit=16, task=task) for index in (1, 2) for task in ("add", "reverse")]


def loaded(folder: Path, weights: Path) -> LlamaEngine:
    engine = create(DEVICE, "float32")
    engine.load(folder, weights)
    return engine


def drift(engine: LlamaEngine, folder: Path, weights: Path) -> float:
    """Return the greatest difference from the scorer's log-probabilities; margins are at most that."""
    scorer = TransformersEngine()
    scorer.load(folder, weights)
    worst = 0.0
    for asked, samples in zip(JOBS, direct.generate_all(engine, JOBS), strict=True):
        for sample, score in zip(samples, scorer.score(asked, samples), strict=True):
            worst = max([worst, *score.margins])
            worst = max([worst, *(abs(x - y) for x, y in zip(sample.logprobs, score.logprobs, strict=True))])
    return worst


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_but("qwen3, heads of 24")
def test_every_architecture_computes_its_adapter_beside_the_base(tmp_path: Path, name: str) -> None:
    folder = adapted.adapt(llama_cpp.make(tmp_path, name))
    version = adapted.trained(folder)
    engine = loaded(folder, version.path)
    assert drift(engine, folder, version.path) <= DRIFT
    assert drift(engine, folder, folder / "model.safetensors") > 0.01, "version 0 is another policy"


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_a_quantised_base_is_the_policy_here_too(tmp_path: Path, form: BaseFormat) -> None:
    folder = adapted.make(tmp_path, form, targets=["q_proj", "v_proj"])
    version = adapted.trained(folder)
    assert drift(loaded(folder, version.path), folder, version.path) <= DRIFT


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama, tied", "qwen3, heads of 24"])
def test_blocks_are_computed_with_as_they_are_stored_and_take_their_memory_alone(
    tmp_path: Path, form: BaseFormat, name: str
) -> None:
    folder = adapted.adapt(llama_cpp.make(tmp_path, name), form)
    version = adapted.trained(folder)
    whole, native = create(DEVICE, "float32"), create(DEVICE, "blocks")
    nbytes = whole.load(folder, version.path).nbytes
    assert native.load(folder, version.path).nbytes < 0.6 * nbytes, "the adapter is float32 in both"
    assert 0 < drift(native, folder, version.path) < 0.5, "activations have 8 bits"


def test_blocks_are_refused_where_the_base_has_none(tmp_path: Path) -> None:
    whole = tiny_model.make(tmp_path / "whole")
    plain = adapted.make(tmp_path / "plain")
    for folder, weights in ((whole.folder, whole.snapshot), (plain, plain / "model.safetensors")):
        with pytest.raises(EngineError, match="not quantised"):
            create(DEVICE, "blocks").load(folder, weights)


def test_a_version_is_a_step_of_the_adapter_and_back(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path / "model")
    first, second = Snapshot(folder / "model.safetensors"), adapted.trained(folder)
    encode(first, second, tmp_path / "payload")
    Rolling.create(tmp_path / "stepped", first)
    engine = loaded(folder, tmp_path / "stepped")
    before = direct.generate(engine, job(3))
    assert engine.step_by(tmp_path / "payload", second.root, keep=1).root == second.root
    assert drift(engine, folder, second.path) <= DRIFT
    engine.step_to(first.root)
    assert direct.generate(engine, job(3)) == before


def test_parameters_and_memory_count_base_and_adapter(tmp_path: Path) -> None:
    whole = tiny_model.make(tmp_path / "whole")
    plain = create(DEVICE, "float32")
    alone: Loaded = plain.load(whole.folder, whole.snapshot)
    folder = adapted.make(tmp_path / "adapted")
    adapter = sum(entry.elements for entry in Snapshot(folder / "model.safetensors").tensors)
    both = create(DEVICE, "float32").load(folder, folder / "model.safetensors")
    assert both.parameters == alone.parameters + adapter
    assert both.nbytes == alone.nbytes + 4 * adapter


def test_an_adapter_of_another_rank_or_of_a_whole_model_is_refused(tmp_path: Path) -> None:
    folder, other = adapted.make(tmp_path / "one"), adapted.make(tmp_path / "two", rank=8)
    engine = create(DEVICE, "float32")
    for wrong in (other / "model.safetensors", tiny_model.make(tmp_path / "whole").snapshot):
        with pytest.raises(BadSnapshot, match="another base or rank"):
            engine.load(folder, wrong)
    engine.load(folder, folder / "model.safetensors")
    assert direct.generate(engine, job(0))


def test_a_damaged_base_or_settings_are_faults_of_the_folder(tmp_path: Path) -> None:
    folder = adapted.make(tmp_path)
    base, config = (folder / BASE_FILE).read_bytes(), (folder / CONFIG).read_text()
    (folder / BASE_FILE).write_bytes(base[:-8])
    with pytest.raises(EngineError, match="fetches damaged files"):
        loaded(folder, folder / "model.safetensors")
    (folder / BASE_FILE).write_bytes(base)
    (folder / CONFIG).write_text("{}")
    with pytest.raises(EngineError, match=CONFIG):
        loaded(folder, folder / "model.safetensors")
    (folder / CONFIG).write_text(config)
    assert loaded(folder, folder / "model.safetensors")
