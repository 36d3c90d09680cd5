"""The engine in float16 and bfloat16, on the CPU device: how far it is from float32, and what it refuses."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.engine import Dtype, EngineError, Job, LogitsNotFinite, Sample
from echo2.engines.transformers.engine import TransformersEngine
from echo2.tasks import tokenizer
from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import save_model
from tests.support import tiny_model
from tests.support.tiny_model import OnDisk, job

SIXTEEN: list[Dtype] = ["float16", "bfloat16"]
SHAPE: dict[str, Any] = {
    "vocab_size": tokenizer.CHAR_SIZE, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 2048, "initializer_range": 0.2,
    "bos_token_id": None, "eos_token_id": tokenizer.EOS, "pad_token_id": tokenizer.PAD,
}  # fmt: skip
MODELS: dict[str, tuple[Any, Any]] = {
    "tied": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)),
    "untied": (LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=12, tie_word_embeddings=False)),
    "an odd number of rotated pairs": (LlamaForCausalLM, LlamaConfig(**SHAPE, head_dim=22, tie_word_embeddings=True)),
    "all layers slide": (MistralForCausalLM, MistralConfig(**SHAPE, head_dim=10, sliding_window=7)),
    "some layers slide, with a softmax scale of its own": (
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **SHAPE, head_dim=6, query_pre_attn_scalar=6, sliding_window=9,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    ),
}  # fmt: skip


def on_disk(folder: Path, model: Any) -> OnDisk:
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tokenizer.char_tokenizer().save(str(folder / "tokenizer.json"))
    snapshot = save_model(model, folder / "snapshot")
    return OnDisk(folder, snapshot.path, snapshot.root, model)


def engine_of(model: OnDisk, dtype: Dtype) -> TransformersEngine:
    engine = TransformersEngine(dtype=dtype)
    engine.load(model.folder, model.snapshot)
    return engine


def margins(scorer: TransformersEngine, asked: Job, samples: list[Sample]) -> np.ndarray:
    return np.concatenate([score.margins for score in scorer.score(asked, samples)])


def drift(scorer: TransformersEngine, asked: Job, samples: list[Sample]) -> np.ndarray:
    scores = scorer.score(asked, samples)
    return np.concatenate([
        np.abs(np.subtract(sample.logprobs, score.logprobs)) for sample, score in zip(samples, scores, strict=True)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    torch.set_num_threads(1)
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scorer(tiny: OnDisk) -> TransformersEngine:
    return engine_of(tiny, "float32")


@pytest.mark.slow
def test_float16_is_several_times_nearer_to_float32_than_bfloat16_is(tiny: OnDisk, scorer: TransformersEngine) -> None:
    jobs = [job(index, samples=16, limit=24) for index in range(4)]
    means = {}
    for dtype in SIXTEEN:
        groups = generate_all(engine_of(tiny, dtype), jobs)
        values = np.concatenate([drift(scorer, asked, group) for asked, group in zip(jobs, groups, strict=True)])
        assert len(values) > 500
        means[dtype] = float(values.mean())
    assert 1e-5 < means["float16"] < means["bfloat16"] / 4


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_but("all layers slide-bfloat16")
def test_odd_models_with_a_long_prompt_stay_near_the_scorer(name: str, dtype: Dtype, tmp_path: Path) -> None:
    """A prompt of several parts beside a short one; the decoder's own check passes at loading."""
    torch.manual_seed(4)
    make, config = MODELS[name]
    model = on_disk(tmp_path, make(copy.deepcopy(config)))
    short = job(1, samples=4, limit=20)
    long = Job(
        prompt=[(7 * number + 3) % 40 + 2 for number in range(1200)], seeds=short.seeds, limit=20, eos=short.eos,
        task=short.task, task_version=short.task_version, split=short.split, index=2,
    )  # fmt: skip
    engine, float32 = engine_of(model, dtype), engine_of(model, "float32")
    # Logits of such models reach 20 and more, where bfloat16's step is 1/8: the bound is for the sum over layers.
    bound = 0.05 if dtype == "float16" else 0.5
    for asked, samples in zip((short, long), generate_all(engine, [short, long]), strict=True):
        assert margins(float32, asked, samples).max() <= bound
        assert drift(float32, asked, samples).max() <= bound


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_step_in_place_gives_what_loading_gives(dtype: Dtype, tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    new, payload = tiny_model.next_version(old)
    Rolling.create(tmp_path / "rolling", Snapshot(old.snapshot))
    live = TransformersEngine(dtype=dtype)
    live.load(old.folder, tmp_path / "rolling")
    before = generate(live, job(1))
    live.step_by(payload, new.root, 0)
    assert generate(live, job(1)) == generate(engine_of(new, dtype), job(1)) != before


def enlarged(tiny: OnDisk, folder: Path, name: str, value: float) -> OnDisk:
    """Return a model of which one weight is so large."""
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[3] = value
    return on_disk(folder, model)


LARGE = "model.layers.1.mlp.up_proj.weight"
REFUSAL = r"model\.layers\.1\.mlp\.up_proj\.weight has the weight 65536\.0, which float16 cannot hold"


def test_a_weight_that_float16_cannot_hold_is_refused_by_its_name_at_loading(tiny: OnDisk, tmp_path: Path) -> None:
    large = enlarged(tiny, tmp_path, LARGE, 65_536.0)
    with pytest.raises(EngineError, match=REFUSAL):
        engine_of(large, "float16")
    for dtype in ("float32", "bfloat16"):
        assert engine_of(large, dtype).load(large.folder, large.snapshot).root == large.root


def test_a_step_to_a_weight_that_float16_cannot_hold_is_refused_and_the_next_one_may_mend_it(
    tiny: OnDisk, tmp_path: Path
) -> None:
    large = enlarged(tiny, tmp_path / "large", LARGE, 65_536.0)
    Rolling.create(tmp_path / "rolling", Snapshot(tiny.snapshot))
    engine = TransformersEngine(dtype="float16")
    engine.load(tiny.folder, tmp_path / "rolling")
    before = generate(engine, job(1))
    for number, (source, to) in enumerate([(tiny, large), (large, tiny)]):
        payload = tmp_path / f"payload {number}"
        encode(Snapshot(source.snapshot), Snapshot(to.snapshot), payload)
        if to is large:
            with pytest.raises(EngineError, match=REFUSAL):
                engine.step_by(payload, to.root, 0)
            with pytest.raises(EngineError, match="no weights are loaded"):
                engine.begin(1, job(1))
            with pytest.raises(EngineError, match=REFUSAL):
                engine.load(tiny.folder, tmp_path / "rolling")
        else:
            Rolling(tmp_path / "rolling").apply(payload, to.root)
    engine.load(tiny.folder, tmp_path / "rolling")
    assert generate(engine, job(1)) == before


def test_a_model_that_leaves_float16s_range_is_refused_at_loading(tiny: OnDisk, tmp_path: Path) -> None:
    """Each weight fits, the sums do not."""
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():
        for name in ("gate_proj", "up_proj"):
            model.get_parameter(f"model.layers.1.mlp.{name}.weight").mul_(1000.0)
    wide = on_disk(tmp_path, model)
    with pytest.raises(LogitsNotFinite, match="leaves the range of the type"):
        engine_of(wide, "float16")
    for dtype in ("float32", "bfloat16"):
        generate(engine_of(wide, dtype), job(1))


def test_logits_that_are_not_finite_fail_the_group_alone(tiny: OnDisk) -> None:
    """A weight that only one token reads: a group without it goes on."""
    engine = engine_of(tiny, "float16")
    model = engine._live_model().model
    asked = job(1, limit=1)
    odd = next(token for token in range(2, 40) if token not in asked.prompt)
    with torch.no_grad():
        embedding = model.get_input_embeddings()
        model.lm_head.weight = torch.nn.Parameter(embedding.weight.clone())
        embedding.weight[odd] = torch.inf
    good, bad = asked, Job(
        prompt=[*asked.prompt, odd], seeds=asked.seeds, limit=1, eos=asked.eos, task=asked.task,
        task_version=asked.task_version, split=asked.split, index=asked.index,
    )  # fmt: skip
    engine.begin(1, bad)
    engine.begin(2, good)
    outcomes: dict[int, Any] = {}
    while len(outcomes) < 2:
        outcomes |= dict(engine.step())
    assert isinstance(outcomes[1], LogitsNotFinite)
    alone = generate(engine_of(tiny, "float16"), good)
    assert [one.tokens for one in outcomes[2]] == [one.tokens for one in alone]
    for one, same in zip(outcomes[2], alone, strict=True):
        assert one.logprobs == pytest.approx(same.logprobs, abs=1e-5)
