"""The engine on the real vLLM, on a CPU, in float32: the tokens of transformers' engine, and log-probabilities as near
as its own. `make test-vllm` runs this; elsewhere it is skipped."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from benchmarks.plays import direct
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.engine import Dtype, Engine, EngineError, Job, Sample
from echo2.engines.process.process import EngineProcess
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.vllm import tempered_rows
from echo2.engines.vllm.engine import VllmEngine, create
from echo2.runtime.child import ChildDied
from echo2.tasks import registry
from echo2.tasks.task import Transcript, replay
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_model, save_tensors
from tests.support import tiny_model, vllm_models
from tests.support.bigram import random_table, write_table
from tests.support.tiny_model import TEXT, OnDisk, job

pytestmark = vllm_models.REAL
DRIFT = 5e-5


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return vllm_models.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def made() -> Iterator[VllmEngine]:
    """One vLLM for all tests: it takes some 10 s to start, and new weights of the same model 0.1 s."""
    engine = create("cpu", "float32")
    yield engine
    engine.close()


@pytest.fixture
def engine(made: VllmEngine, small: OnDisk) -> VllmEngine:
    made.load(small.folder, small.snapshot)
    return made


def scorer_of(model: OnDisk) -> TransformersEngine:
    scorer = TransformersEngine()
    scorer.load(model.folder, model.snapshot)
    return scorer


def worst(scorer: Engine, asked: Job, samples: list[Sample]) -> tuple[float, float]:
    """Return the greatest margin and the greatest difference of a log-probability."""
    margin = drift = 0.0
    for sample, score in zip(samples, scorer.score(asked, samples), strict=True):
        margin = max([margin, *score.margins])
        drift = max([drift, *(abs(x - y) for x, y in zip(sample.logprobs, score.logprobs, strict=True))])
    return margin, drift


def test_what_it_generates_is_what_the_scorer_finds(engine: VllmEngine, small: OnDisk) -> None:
    scorer = scorer_of(small)
    jobs = [job(index, samples=8, limit=24, task=task) for index in range(4) for task in ("add", "reverse")]
    for asked, samples in zip(jobs, direct.generate_all(engine, jobs), strict=True):
        margin, drift = worst(scorer, asked, samples)
        assert margin == 0.0
        assert drift <= DRIFT


def test_its_tokens_are_those_of_the_transformers_engine(engine: VllmEngine, small: OnDisk) -> None:
    jobs = [msgspec.structs.replace(job(index, samples=4, limit=16), greedy=greedy) for index, greedy in
            ((0, True), (0, False), (1, True), (2, False))]  # fmt: skip
    ours = direct.generate_all(engine, jobs)
    theirs = direct.generate_all(scorer_of(small), jobs)
    assert [[one.tokens for one in group] for group in ours] == [[one.tokens for one in group] for group in theirs]


@pytest.mark.parametrize("temperature", [800, 2000])
def test_at_a_temperature_tokens_and_log_probabilities_are_those_of_it(
    temperature: int, engine: VllmEngine, small: OnDisk
) -> None:
    scorer = scorer_of(small)
    hot = [msgspec.structs.replace(job(index, samples=8, limit=24), temperature=temperature) for index in range(3)]
    jobs = [*hot, job(3, samples=4), msgspec.structs.replace(hot[0], greedy=True)]
    *groups, greedy = direct.generate_all(engine, jobs)
    for asked, samples in zip(jobs[:-1], groups, strict=True):
        assert worst(scorer, asked, samples) <= (0.0, DRIFT * 1000 / min(1000, asked.temperature))
    assert greedy == direct.generate(engine, msgspec.structs.replace(jobs[0], greedy=True, temperature=1000))
    engine.begin(9, hot[0])
    engine.step()
    engine.cancel(9)
    assert tempered_rows._kept == {}, "nothing is kept of groups that ended or were cancelled"


@pytest.mark.parametrize("name", [name for name in vllm_models.MODELS if name != "qwen3, tied"])
def test_each_architecture_computes_what_transformers_computes(name: str, made: VllmEngine, tmp_path: Path) -> None:
    model = vllm_models.make(tmp_path, name)
    made.load(model.folder, model.snapshot)
    asked = job(1, samples=6, limit=90)
    margin, drift = worst(scorer_of(model), asked, direct.generate(made, asked))
    assert margin == 0.0
    assert drift <= 2 * DRIFT


def test_an_episode_of_several_turns_replays_and_scores(made: VllmEngine, tmp_path: Path) -> None:
    chatty = vllm_models.make(tmp_path, seed=4, eos_bias=2.0)
    made.load(chatty.folder, chatty.snapshot)
    scorer = scorer_of(chatty)
    jobs = [job(index, samples=32, limit=9, task="guess") for index in range(6)]
    groups = list(zip(jobs, direct.generate_all(made, jobs), strict=True))
    assert any(len(sample.turns) > 1 for _, samples in groups for sample in samples)
    for asked, samples in groups:
        margin, drift = worst(scorer, asked, samples)
        assert (margin, drift <= DRIFT) == (0.0, True)
        for sample in samples:
            episode = registry.get("guess", 1).episode("train", asked.index, TEXT)
            replay(episode, Transcript(sample.tokens, sample.turns), ends=TEXT.ends, limit=9)


@pytest.mark.parametrize("name", ["qwen3, tied", "llama, all biases"])
def test_a_version_is_stepped_in_place_and_back_to_the_very_bits(name: str, made: VllmEngine, tmp_path: Path) -> None:
    """vLLM fuses q, k and v, and gate and up: patches go through its own loader."""
    old = vllm_models.make(tmp_path / "model", name)
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    made.load(old.folder, folder)
    before = content(made)
    new, payload = tiny_model.next_version(old)
    loaded = made.step_by(payload, new.root, 1)
    assert (loaded.root, loaded.behind) == (new.root, [old.root])
    stepped, asked = content(made), job(4, limit=24)
    generated = direct.generate(made, asked)
    assert worst(scorer_of(new), asked, generated)[0] == 0.0
    assert made.step_to(old.root).ahead == [new.root]
    assert all(torch.equal(now, then) for now, then in zip(content(made), before, strict=True))
    assert direct.generate(made, asked) != generated
    made.load(new.folder, new.snapshot)
    assert all(torch.equal(now, then) for now, then in zip(content(made), stepped, strict=True))
    assert any(not torch.equal(now, then) for now, then in zip(stepped, before, strict=True))


def content(engine: VllmEngine) -> list[torch.Tensor]:
    """Return copies of every parameter that vLLM computes with."""
    assert engine._resident is not None
    (parameters,) = engine._resident[1]._engine.apply_model(lambda model: [one.clone() for one in model.parameters()])
    return list(parameters)


def test_a_step_that_is_refused_leaves_the_version_loaded(made: VllmEngine, tmp_path: Path) -> None:
    old = vllm_models.make(tmp_path / "model")
    folder = tmp_path / "rolling"
    Rolling.create(folder, Snapshot(old.snapshot))
    made.load(old.folder, folder)
    tokens = [one.tokens for one in direct.generate(made, job(1))]
    new, payload = tiny_model.next_version(old)
    with pytest.raises(BadPayload):
        made.step_by(payload, bytes(32), 1)
    with pytest.raises(WrongBase, match="no kept step leads"):
        made.step_to(bytes(32))
    assert [one.tokens for one in direct.generate(made, job(1))] == tokens
    assert made.step_by(payload, new.root, 1).root == new.root


def test_an_output_of_another_version_than_the_loaded_one_is_no_sample(engine: VllmEngine) -> None:
    """As after a change of weights that reached only a part of vLLM."""
    engine._resident[1]._engine.set_weight_version("ab" * 32)
    with pytest.raises(EngineError, match="computed with the weights abababababababab, not with"):
        direct.generate(engine, job(1))


def test_a_cancelled_group_leaves_the_others_their_tokens(engine: VllmEngine) -> None:
    alone = direct.generate(engine, job(2, limit=24))
    for ticket in range(4):
        engine.begin(ticket, job(ticket, limit=24))
    assert engine.step() == []
    assert engine.rows.running == 32
    for ticket in (0, 1, 3):
        engine.cancel(ticket)
    assert engine.rows.running == 8
    ended = []
    while not ended:
        ended = engine.step()
    assert [(one.ticket, one.outcome) for one in ended] == [(2, alone)]
    assert engine.rows.running == 0


def test_a_failure_within_a_step_ends_the_process(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the device runs out of memory: vLLM's queues are then in no known state."""
    core = engine._resident[1]._engine.engine_core
    engine.begin(1, job(1))

    def fail() -> None:
        raise RuntimeError("CUDA out of memory\nTried to allocate 2 GiB")

    with monkeypatch.context() as patched:
        patched.setattr(core, "get_output", fail)
        with pytest.raises(ProgramLost, match=r"^vLLM failed within a step: CUDA out of memory$"):
            engine.step()
    assert engine.rows.running == 0


async def test_a_killed_process_is_noticed_and_the_next_one_goes_on(small: OnDisk) -> None:
    asked = job(1, samples=4, limit=400)
    async with EngineProcess() as engine:
        probed = await engine.probe("cpu", engine="vllm")
        assert probed.engine_class == "vllm/float32/cpu"
        await engine.load(small.folder, small.snapshot)
        engine.on_rows = lambda rows: os.kill(engine.pid, signal.SIGKILL) if rows.running else None
        with pytest.raises(ChildDied):
            await engine.generate(asked)


def test_a_snapshot_of_another_model_is_refused(engine: VllmEngine, small: OnDisk, tmp_path: Path) -> None:
    table = write_table(tmp_path / "table.safetensors", random_table(3))
    with pytest.raises(BadSnapshot, match="vLLM cannot take these weights: "):
        engine.load(small.folder, table.path)


def test_a_tensor_that_the_snapshot_lacks_is_refused(made: VllmEngine, tmp_path: Path) -> None:
    made.close()
    model = vllm_models.make(tmp_path)
    tensors = {name: tensor for name, tensor in model.model.state_dict().items() if "layers.1.mlp.down" not in name}
    cut = save_tensors(tensors, tmp_path / "cut.snapshot", aliases={"lm_head.weight": "model.embed_tokens.weight"})
    with pytest.raises(BadSnapshot, match=r"the weights lack model\.layers\.1\.mlp\.down_proj\.weight, and 0 other"):
        made.load(model.folder, cut.path)
    assert made.load(model.folder, model.snapshot).root == model.root


def test_weights_that_vllm_would_keep_in_another_form_are_refused(
    made: VllmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU vLLM packs the weights of linear layers, unless it is told not to: no later change would reach them."""
    from vllm import _custom_ops

    from echo2.engines.vllm import patch_transfer

    monkeypatch.setattr(_custom_ops, "_supports_onednn", True)
    monkeypatch.setattr(patch_transfer, "keep_plain_weights", lambda: None)
    model = vllm_models.make(tmp_path)
    made.close()
    with pytest.raises(BadSnapshot, match="vLLM cannot take these weights"):
        made.load(model.folder, model.snapshot)
    made.close()


def test_a_truncated_snapshot_is_refused(engine: VllmEngine, small: OnDisk, tmp_path: Path) -> None:
    cut = tmp_path / "cut.snapshot"
    cut.write_bytes(small.snapshot.read_bytes()[:-100])
    with pytest.raises(BadSnapshot):
        engine.load(small.folder, cut)


def test_weights_that_are_not_finite_end_their_groups_alone(engine: VllmEngine, tmp_path: Path) -> None:
    broken = vllm_models.make(tmp_path / "nan")
    broken.model.model.norm.weight.data[3] = float("nan")
    engine.load(broken.folder, save_model(broken.model, tmp_path / "nan.snapshot").path)
    with pytest.raises(EngineError, match="not finite"):
        direct.generate(engine, job(1))
    engine.load(broken.folder, broken.snapshot)
    assert direct.generate(engine, job(1))


def test_a_folder_without_a_model_is_refused(tmp_path: Path, small: OnDisk) -> None:
    with pytest.raises(EngineError, match=r"has no config\.json that can be read"):
        create("cpu", "float32").load(tmp_path, small.snapshot)


def test_a_rollout_longer_than_the_model_allows_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match=r"a rollout of 6\d\d tokens is too long: the model and the memory allow 512"):
        engine.begin(1, job(1, limit=600))
    assert engine.rows.running == 0


def test_it_does_not_score_and_says_which_engine_does(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="does not score: use the engine transformers"):
        engine.score(job(0, samples=0), [])


def test_without_weights_nothing_can_be_asked_of_it() -> None:
    with pytest.raises(EngineError, match="call load first"):
        VllmEngine("cpu", "float32").begin(1, job())


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.4), ("float16", 0.05)])
def test_sixteen_bits_stay_near_float32(dtype: Dtype, most: float, made: VllmEngine, tmp_path: Path) -> None:
    model = vllm_models.make(tmp_path)
    made.close()
    engine = VllmEngine("cpu", dtype, most_rows=4)
    loaded = engine.load(model.folder, model.snapshot)
    assert loaded.nbytes == 2 * loaded.parameters
    assert engine.rows.limit == 4
    asked = job(3, samples=8, limit=16)
    assert worst(scorer_of(model), asked, direct.generate(engine, asked))[1] <= most
    engine.close()


def test_a_weight_that_float16_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    model = vllm_models.make(tmp_path)
    model.model.model.norm.weight.data[3] = 70_000.0
    large = save_model(model.model, tmp_path / "large.snapshot")
    with pytest.raises(EngineError, match=r"model\.norm\.weight has the weight 7\d{4}"):
        VllmEngine("cpu", "float16").load(model.folder, large.path)
