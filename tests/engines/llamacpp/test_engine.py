"""The engine against transformers' own, in float32: the same tokens, and log-probabilities as near as its own."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from transformers import LlamaConfig

from benchmarks.plays import direct
from echo2.engines.engine import Engine, EngineError, Job, Sample
from echo2.engines.llamacpp import backends
from echo2.engines.llamacpp.engine import LlamaEngine, create
from echo2.engines.transformers.engine import TransformersEngine
from echo2.tasks import registry
from echo2.tasks.task import Transcript, replay
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_model, save_tensors
from tests.support import llama_cpp, tiny_model
from tests.support.bad_jobs import BAD_JOBS
from tests.support.bigram import random_table, write_table
from tests.support.llama_cpp import DEVICE
from tests.support.tiny_model import TEXT, OnDisk, job

pytestmark = llama_cpp.needed
DRIFT = 5e-5 if DEVICE == "cpu" else 2e-2
"""A GPU, and Mesa's in software, computes float32 products otherwise."""


def engine_with(folder: Path, weights: Path) -> LlamaEngine:
    engine = create(DEVICE, "float32")
    engine.load(folder, weights)
    return engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scorer(tiny: OnDisk) -> TransformersEngine:
    scorer = TransformersEngine()
    scorer.load(tiny.folder, tiny.snapshot)
    return scorer


@pytest.fixture(scope="module")
def engine(tiny: OnDisk) -> LlamaEngine:
    return engine_with(tiny.folder, tiny.snapshot)


def worst(scorer: Engine, asked: Job, samples: list[Sample]) -> tuple[float, float]:
    """Return the greatest margin and the greatest difference of a log-probability."""
    margin = drift = 0.0
    for sample, score in zip(samples, scorer.score(asked, samples), strict=True):
        margin = max([margin, *score.margins])
        drift = max([drift, *(abs(x - y) for x, y in zip(sample.logprobs, score.logprobs, strict=True))])
    return margin, drift


@pytest.mark.slow
def test_what_it_generates_is_what_the_scorer_finds(engine: LlamaEngine, scorer: TransformersEngine) -> None:
    jobs = [job(index, samples=8, limit=24, task=task) for index in range(4) for task in ("add", "reverse")]
    for asked, samples in zip(jobs, direct.generate_all(engine, jobs), strict=True):
        margin, drift = worst(scorer, asked, samples)
        assert margin <= (0.0 if DEVICE == "cpu" else DRIFT)
        assert drift <= DRIFT


@pytest.mark.parametrize("name", llama_cpp.MODELS)
def test_each_architecture_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    model = llama_cpp.make(tmp_path, name)
    theirs = TransformersEngine()
    theirs.load(model.folder, model.snapshot)
    asked = job(1, samples=6, limit=90)
    margin, drift = worst(theirs, asked, direct.generate(engine_with(model.folder, model.snapshot), asked))
    assert margin <= (0.0 if DEVICE == "cpu" else DRIFT)
    assert drift <= 2 * DRIFT


def test_greedy_takes_the_most_likely_token(engine: LlamaEngine, scorer: TransformersEngine) -> None:
    jobs = [msgspec.structs.replace(job(index, samples=2, limit=8), greedy=greedy) for index, greedy in
            ((0, True), (0, False), (1, True))]  # fmt: skip
    ours = direct.generate_all(engine, jobs)
    theirs = direct.generate_all(scorer, jobs)
    assert [[one.tokens for one in group] for group in ours] == [[one.tokens for one in group] for group in theirs]


@pytest.mark.slow
def test_an_episode_of_several_turns_replays_and_scores(tmp_path: Path) -> None:
    chatty = tiny_model.make(tmp_path, seed=3, eos_bias=0.6)
    engine, theirs = engine_with(chatty.folder, chatty.snapshot), TransformersEngine()
    theirs.load(chatty.folder, chatty.snapshot)
    jobs = [job(index, samples=32, limit=9, task="guess") for index in range(12)]
    groups = list(zip(jobs, direct.generate_all(engine, jobs), strict=True))
    assert any(len(sample.turns) > 1 for _, samples in groups for sample in samples)
    for asked, samples in groups[:3]:
        assert worst(theirs, asked, samples)[1] <= DRIFT
        for sample in samples:
            episode = registry.get("guess", 1).episode("train", asked.index, TEXT)
            replay(episode, Transcript(sample.tokens, sample.turns), ends=TEXT.ends, limit=9)


def test_a_version_is_stepped_in_place_and_back_to_the_very_bits(tiny: OnDisk, tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    engine = engine_with(old.folder, folder)
    before = content(engine)
    new, payload = tiny_model.next_version(old)
    loaded = engine.step_by(payload, new.root, 1)
    assert (loaded.root, loaded.behind) == (new.root, [old.root])
    stepped = content(engine)
    fresh = content(engine_with(new.folder, new.snapshot))
    assert stepped.keys() == fresh.keys() == before.keys()
    assert all(np.array_equal(stepped[name], fresh[name]) for name in fresh)
    assert any(not np.array_equal(stepped[name], before[name]) for name in fresh)
    asked = job(4)
    assert direct.generate(engine, asked) == direct.generate(engine_with(new.folder, new.snapshot), asked)
    assert engine.step_to(old.root).ahead == [new.root]
    back = content(engine)
    assert all(np.array_equal(back[name], before[name]) for name in before)
    assert engine.step_to(new.root).root == new.root


def content(engine: LlamaEngine) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """Return the bytes of every tensor that llama.cpp holds, by the model's name and which copy it is."""
    live = engine._live_model()
    return {
        f"{entry.name} {copy}": values.view(np.uint8)
        for entry in live.weights.snapshot.tensors
        for copy, values in enumerate(live.model.read(entry.name))
    }


def test_a_step_that_is_refused_leaves_the_version_loaded(tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    engine = engine_with(old.folder, folder)
    tokens = [one.tokens for one in direct.generate(engine, job(1))]
    new, payload = tiny_model.next_version(old)
    with pytest.raises(BadPayload):
        engine.step_by(payload, bytes(32), 1)
    with pytest.raises(WrongBase, match="no kept step leads"):
        engine.step_to(bytes(32))
    assert [one.tokens for one in direct.generate(engine, job(1))] == tokens
    assert engine.step_by(payload, new.root, 1).root == new.root


def test_a_snapshot_of_another_model_is_refused(tiny: OnDisk, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.safetensors", random_table(3))
    with pytest.raises(BadSnapshot, match="is of another model: 1 names differ"):
        engine_with(tiny.folder, table.path)


def test_a_tensor_that_llama_cpp_would_leave_out_is_refused(tiny: OnDisk, tmp_path: Path) -> None:
    config = json.loads((tiny.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(BadSnapshot, match=r"llama.cpp's llama has no use for 'model.layers.0.self_attn.k_norm.weight'"):
        engine_with(tmp_path, tiny.snapshot)


def test_a_tensor_that_the_snapshot_lacks_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(**llama_cpp.SIZES, tie_word_embeddings=True)
    model = llama_cpp.make(tmp_path, "llama, tied").model
    tensors = {name: tensor for name, tensor in model.state_dict().items() if "layers.1.mlp.up" not in name}
    config.save_pretrained(tmp_path)
    cut = save_tensors(tensors, tmp_path / "cut.snapshot", aliases={"lm_head.weight": "model.embed_tokens.weight"})
    with pytest.raises(
        EngineError, match=r"asks for the tensor blk\.1\.ffn_up\.weight, which this model does not have"
    ):
        engine_with(tmp_path, cut.path)


def test_a_vocabulary_that_differs_is_refused_by_the_tensor_that_shows_it(tiny: OnDisk, tmp_path: Path) -> None:
    config = (tiny.folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace(f'"vocab_size": {TEXT.size}', f'"vocab_size": {TEXT.size + 8}')
    )
    with pytest.raises(
        BadSnapshot, match=r"'model.embed_tokens.weight' is .* in the snapshot, .* in the model's config"
    ):
        engine_with(tmp_path, tiny.snapshot)


def test_a_truncated_snapshot_is_refused(tiny: OnDisk, tmp_path: Path) -> None:
    cut = tmp_path / "cut.snapshot"
    cut.write_bytes(tiny.snapshot.read_bytes()[:-100])
    with pytest.raises(BadSnapshot):
        engine_with(tiny.folder, cut)


def test_weights_that_are_not_finite_end_their_groups_alone(tmp_path: Path) -> None:
    broken = tiny_model.make(tmp_path / "nan")
    with_nan = broken.model
    with_nan.model.norm.weight.data[3] = float("nan")
    engine = engine_with(broken.folder, save_model(with_nan, tmp_path / "nan.snapshot").path)
    with pytest.raises(EngineError, match="not finite"):
        direct.generate(engine, job(1))
    engine.load(broken.folder, broken.snapshot)
    assert direct.generate(engine, job(1))


def test_memory_is_compared_before_anything_is_loaded(
    tiny: OnDisk, engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "free_memory", lambda library, handle: 1000)
    with pytest.raises(EngineError, match=r"takes 0\.\d+ GiB in float32, and the device has .* GiB free: end other"):
        LlamaEngine(backends.library(), DEVICE, "float32").load(tiny.folder, tiny.snapshot)


def test_it_does_not_score_and_says_which_engine_does(engine: LlamaEngine) -> None:
    with pytest.raises(EngineError, match="does not score: use the engine transformers"):
        engine.score(job(0, samples=0), [])


@pytest.mark.parametrize("case", [*BAD_JOBS, "a split that is none"])
def test_a_job_that_cannot_be_generated_is_refused(case: str, engine: LlamaEngine) -> None:
    changes, sentence = {**BAD_JOBS, "a split that is none": ({"split": "test"}, "no such split")}[case]
    with pytest.raises(EngineError, match=sentence):
        engine.begin(1, msgspec.structs.replace(job(), **changes))
    assert engine.step() == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_stay_near_float32(dtype: str, tiny: OnDisk, scorer: TransformersEngine) -> None:
    engine = LlamaEngine(backends.library(), DEVICE, dtype)  # type: ignore[arg-type]
    loaded = engine.load(tiny.folder, tiny.snapshot)
    assert loaded.nbytes < 3 * loaded.parameters
    asked = job(3, samples=8, limit=16)
    assert worst(scorer, asked, direct.generate(engine, asked))[1] <= (0.05 if dtype == "float16" else 0.4)
