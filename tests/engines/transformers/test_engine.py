import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.engine import GAP_MOST, EngineError, Job, NoMemory, Sample
from echo2.engines.sampling import sampling
from echo2.engines.transformers import engine as transformers_engine
from echo2.engines.transformers import packed_linear
from echo2.engines.transformers.engine import TransformersEngine
from echo2.tasks import registry
from echo2.tasks.task import InvalidTranscript, Transcript, replay, sampled_mask
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import tiny_model
from tests.support.bad_jobs import BAD_JOBS
from tests.support.tiny_model import TEXT, OnDisk, job

MARGIN = 5e-4
DRIFT = 5e-5


@pytest.fixture(scope="module", autouse=True, params=["plain", "packed"])
def layers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with PyTorch's own layers and with packed ones, which so small a model would not have by itself."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "packed":
            patch.setattr(packed_linear, "LEAST_PACKED_WEIGHTS", 1)
            patch.setattr(packed_linear, "MOST_PLAIN_ROWS", 0)
            if not packed_linear.pack(torch.nn.Sequential(torch.nn.Linear(64, 64))):
                pytest.skip("this processor or PyTorch packs no layers")
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def engine(tiny: OnDisk) -> TransformersEngine:
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    return engine


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    """Return a model that ends its turns often."""
    tiny = tiny_model.make(tmp_path_factory.mktemp("chatty"), seed=3, eos_bias=0.6)
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    return engine


def margins(engine: TransformersEngine, job: Job, samples: list[Sample]) -> list[float]:
    return [value for score in engine.score(job, samples) for value in score.margins]


def test_loading_says_what_is_held(tiny: OnDisk, engine: TransformersEngine) -> None:
    loaded = TransformersEngine().load(tiny.folder, tiny.snapshot)
    assert loaded.root == tiny.root
    assert loaded.parameters == sum(parameter.numel() for parameter in tiny.model.parameters())
    assert loaded.nbytes == 4 * loaded.parameters


@pytest.mark.slow
def test_rescoring_an_honest_engine_finds_no_mismatch_in_thousands_of_tokens(engine: TransformersEngine) -> None:
    tokens, mismatches, drift = 0, 0, 0.0
    for index in range(12):
        asked = job(index, samples=16, limit=24)
        samples = generate(engine, asked)
        for sample, score in zip(samples, engine.score(asked, samples), strict=True):
            tokens += len(score.margins)
            mismatches += sum(margin != 0.0 for margin in score.margins)
            drift = max([drift, *(abs(x - y) for x, y in zip(sample.logprobs, score.logprobs, strict=True))])
    assert tokens > 3000
    assert mismatches == 0
    assert drift <= DRIFT


def test_log_probabilities_are_those_of_a_plain_forward_pass(tiny: OnDisk, engine: TransformersEngine) -> None:
    """Against the library itself, prompt and completion in one pass, without any code of ours."""
    asked = job(3, samples=4, limit=6)
    model = engine._live_model().model
    for sample in generate(engine, asked):
        with torch.no_grad():
            logits = model(torch.tensor([[*asked.prompt, *sample.tokens]])).logits[0, len(asked.prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(sample.tokens)), sample.tokens]
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=DRIFT)
        assert max(sample.logprobs) <= 0.0


@pytest.mark.slow_but("packed")
def test_a_group_does_not_depend_on_its_size_or_company(engine: TransformersEngine) -> None:
    large = job(5, samples=16, limit=20)
    alone = [msgspec.structs.replace(large, seeds=[seed]) for seed in large.seeds]
    together = generate(engine, large)
    for sample, single in zip(together, (generate(engine, one)[0] for one in alone), strict=True):
        assert (sample.tokens, sample.turns) == (single.tokens, single.turns)
        assert sample.logprobs == pytest.approx(single.logprobs, abs=DRIFT)
    many = generate_all(engine, [job(9, samples=3, limit=20), large, job(2, samples=5, limit=20)])
    assert [sample.tokens for sample in many[1]] == [sample.tokens for sample in together]


def test_a_sample_scored_alone_has_the_values_that_it_has_in_its_group(engine: TransformersEngine) -> None:
    """So a group may be looked at in two passes (coordinator/verdicts/group_verifier.py)."""
    asked = job(5, samples=16, limit=20)
    samples = generate(engine, asked)
    together = engine.score(asked, samples)
    for number, (seed, whole) in enumerate(zip(asked.seeds, together, strict=True)):
        (alone,) = engine.score(msgspec.structs.replace(asked, seeds=[seed]), [samples[number]])
        assert alone.logprobs == pytest.approx(list(whole.logprobs), abs=DRIFT / 10)
        assert alone.margins == whole.margins == [0.0] * len(whole.margins)
        assert alone.gaps == pytest.approx(list(whole.gaps), abs=DRIFT)
        assert len(whole.gaps) == len(whole.margins)
        assert all(0.0 < gap <= GAP_MOST for gap in whole.gaps)


def test_prompts_of_several_lengths_come_back_in_the_order_asked(engine: TransformersEngine) -> None:
    jobs = [job(index, samples=2, task=task) for index in range(3) for task in ("add", "reverse", "guess")]
    assert len({len(asked.prompt) for asked in jobs}) > 1
    apart = [generate(engine, asked) for asked in jobs]
    together = generate_all(engine, jobs)
    assert [[sample.tokens for sample in group] for group in together] == [
        [sample.tokens for sample in group] for group in apart
    ]


def test_greedy_takes_the_most_likely_token_whatever_the_seed(engine: TransformersEngine) -> None:
    jobs = [job(1, samples=1), job(1, samples=1, first=77)]
    [first], [second] = generate_all(engine, [msgspec.structs.replace(one, greedy=True) for one in jobs])
    assert first == second
    model = engine._live_model().model
    with torch.no_grad():
        logits = model(torch.tensor([job(1).prompt])).logits[0, -1]
    assert first.tokens[0] == logits.argmax().item()


def test_eos_ends_a_rollout_and_the_others_go_on(chatty: TransformersEngine) -> None:
    asked = job(4, samples=32, limit=10)
    samples = generate(chatty, asked)
    lengths = {len(sample.tokens) for sample in samples}
    assert len(lengths) >= 3
    for sample in samples:
        assert sample.turns == [len(sample.tokens)]
        assert TEXT.eos not in sample.tokens[:-1]
        assert sample.tokens[-1] == TEXT.eos or len(sample.tokens) == 10
        task = registry.get("reverse", 1)
        replay(task.episode("train", 4, TEXT), Transcript(sample.tokens, sample.turns), ends=TEXT.ends, limit=10)
    assert set(margins(chatty, asked, samples)) == {0.0}


def test_a_limit_of_one_gives_one_token(engine: TransformersEngine) -> None:
    asked = job(0, samples=5, limit=1)
    samples = generate(engine, asked)
    assert [len(sample.tokens) for sample in samples] == [1] * 5
    assert margins(engine, asked, samples) == [0.0] * 5


def test_a_group_of_no_seeds_is_empty(engine: TransformersEngine) -> None:
    asked = job(samples=0)
    assert generate(engine, asked) == []
    assert engine.score(asked, []) == []


def multi_turn(engine: TransformersEngine) -> tuple[Job, list[Sample]]:
    """Generate groups of the guessing game until one has rollouts with a hint in them, and rollouts without."""
    for index in range(200):
        asked = job(index, samples=32, limit=9, task="guess")
        samples = generate(engine, asked)
        if {len(sample.turns) for sample in samples} >= {1, 3}:
            return asked, samples
    raise AssertionError("no game with two turns")


def test_an_episode_of_several_turns_replays_and_scores(chatty: TransformersEngine) -> None:
    asked, samples = multi_turn(chatty)
    task = registry.get("guess", 1)
    for sample, score in zip(samples, chatty.score(asked, samples), strict=True):
        episode = task.episode("train", asked.index, TEXT)
        replay(episode, Transcript(sample.tokens, sample.turns), ends=TEXT.ends, limit=9)
        assert len(sample.logprobs) == sum(sampled_mask(sample.turns)) == len(score.logprobs)
        assert set(score.margins) == {0.0}
        assert score.logprobs == pytest.approx(sample.logprobs, abs=DRIFT)


def test_a_changed_hint_is_refused_and_shows_in_the_tokens_after_it(chatty: TransformersEngine) -> None:
    asked, samples = multi_turn(chatty)
    row, sample = next((row, sample) for row, sample in enumerate(samples) if len(sample.turns) == 3)
    tokens = list(sample.tokens)
    tokens[sample.turns[0]] ^= 1
    forged = msgspec.structs.replace(sample, tokens=tokens)
    with pytest.raises(InvalidTranscript, match="not the environment's"):
        replay(
            registry.get("guess", 1).episode("train", asked.index, TEXT),
            Transcript(forged.tokens, forged.turns), ends=TEXT.ends, limit=9,
        )  # fmt: skip
    samples[row] = forged
    score = chatty.score(asked, samples)[row]
    before = sample.turns[0]
    assert score.logprobs[:before] == pytest.approx(sample.logprobs[:before], abs=DRIFT)
    assert score.logprobs[before:] != pytest.approx(sample.logprobs[before:], abs=100 * DRIFT)


@pytest.fixture(scope="module")
def honest(engine: TransformersEngine) -> tuple[Job, list[Sample]]:
    asked = job(7, samples=16, limit=24)
    return asked, generate(engine, asked)


def test_a_changed_token_shows_where_it_stands(engine: TransformersEngine, honest: tuple[Job, list[Sample]]) -> None:
    asked, samples = honest
    sample = samples[3]
    for position in range(len(sample.tokens)):
        tokens = list(sample.tokens)
        tokens[position] = (tokens[position] + 1) % 50 or 2
        forged = [*samples[:3], msgspec.structs.replace(sample, tokens=tokens), *samples[4:]]
        scores = engine.score(asked, forged)
        assert scores[3].margins[:position] == [0.0] * position
        assert scores[3].margins[position] > MARGIN
        assert set(scores[2].margins) == {0.0}


def other_seed(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    """Return the answer to another seed of the same group, as for best of many, or a copy."""
    asked, samples = honest
    return asked, [*samples[1:], samples[0]]


def other_weights(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    return honest[0], _with_weights(tiny, honest[0], lambda weight: weight * (1 + 0.05 * weight.sign()))


def rounded_weights(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    """Round the weights to int8, one scale per tensor."""

    def quantise(weight: torch.Tensor) -> torch.Tensor:
        scale = weight.abs().max() / 127
        return (weight / scale).round() * scale

    return honest[0], _with_weights(tiny, honest[0], quantise)


def other_temperature(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    """Generate at temperature 1.2: divide the final norm's weight by 1.2."""
    return honest[0], _with_weights(tiny, honest[0], lambda weight: weight / 1.2, only="model.norm.weight")


def without_temperature(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    """Generate at temperature 1 in a run of temperature 0.8."""
    return msgspec.structs.replace(honest[0], temperature=800), honest[1]


def other_prompt(honest: tuple[Job, list[Sample]], tiny: OnDisk) -> tuple[Job, list[Sample]]:
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    prompt = [*honest[0].prompt[:-1], honest[0].prompt[0]]
    return honest[0], generate(engine, msgspec.structs.replace(honest[0], prompt=prompt))


def _with_weights(tiny: OnDisk, asked: Job, change: object, only: str = "") -> list[Sample]:
    assert callable(change)
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    with torch.no_grad():
        for name, parameter in engine._live_model().model.named_parameters():
            if only in name:
                parameter.copy_(change(parameter))
    return generate(engine, asked)


@pytest.mark.parametrize("temperature", [500, 800, 2000])
def test_what_is_generated_at_a_temperature_is_right_at_it(
    temperature: int, engine: TransformersEngine, tiny: OnDisk
) -> None:
    """Its log-probabilities are those of the logits over the temperature; a greedy group has none."""
    asked = job(3, samples=4, limit=24)
    hot = msgspec.structs.replace(asked, temperature=temperature)
    samples, most_likely = generate_all(engine, [hot, msgspec.structs.replace(hot, greedy=True)])
    plain = generate(engine, msgspec.structs.replace(asked, greedy=True))
    assert [one.tokens for one in most_likely] == [one.tokens for one in plain]
    assert most_likely[0].logprobs == pytest.approx(plain[0].logprobs, abs=1e-4)
    for sample, score in zip(samples, engine.score(hot, samples), strict=True):
        assert max(score.margins) == 0.0
        assert sample.logprobs == pytest.approx(score.logprobs, abs=1e-4)
    sample, model = samples[0], engine._live_model().model
    with torch.no_grad():
        logits = model(torch.tensor([hot.prompt + sample.tokens])).logits[0, len(hot.prompt) - 1 : -1]
    told = (logits * 1000 / temperature).log_softmax(-1).gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert sample.logprobs == pytest.approx(told.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "lie", [other_seed, other_weights, rounded_weights, other_temperature, without_temperature, other_prompt]
)
def test_every_swap_shows_in_the_margins(
    lie: object, engine: TransformersEngine, honest: tuple[Job, list[Sample]], tiny: OnDisk
) -> None:
    assert callable(lie)
    asked, samples = lie(honest, tiny)
    assert sum(margin > MARGIN for margin in margins(engine, asked, samples)) >= 3


def live_engine(tiny: OnDisk, folder: Path, device: str = "cpu") -> TransformersEngine:
    """Return an engine whose weights step in place."""
    Rolling.create(folder, Snapshot(tiny.snapshot))
    live = TransformersEngine(device)
    live.load(tiny.folder, folder)
    return live


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.slow_but("packed-cuda", "plain-cuda")
def test_a_step_in_place_gives_what_loading_the_new_snapshot_gives_and_back_what_was_before(
    tmp_path: Path, device: str
) -> None:
    old = tiny_model.make(tmp_path / "model")
    new, payload = tiny_model.next_version(old)
    live, fresh = live_engine(old, tmp_path / "rolling", device), TransformersEngine(device)
    pointers = [parameter.data_ptr() for parameter in live._live_model().model.parameters()]
    asked = job(1, limit=20)
    before = generate(live, asked)
    stepped = live.step_by(payload, new.root, 1)
    loaded = fresh.load(new.folder, new.snapshot)
    assert (stepped.root, stepped.behind, stepped.ahead, loaded.root) == (new.root, [old.root], [], new.root)
    assert (tmp_path / "rolling" / "snapshot.safetensors").read_bytes() == new.snapshot.read_bytes()
    assert generate(live, asked) == generate(fresh, asked) != before
    undone = live.step_to(old.root)
    assert (undone.root, undone.behind, undone.ahead) == (old.root, [], [new.root])
    assert generate(live, asked) == before
    with pytest.raises(WrongBase, match="leads to"):
        live.step_to(bytes(32))
    assert live.step_to(new.root) == stepped
    assert generate(live, asked) == generate(fresh, asked)
    assert pointers == [parameter.data_ptr() for parameter in live._live_model().model.parameters()]


@pytest.mark.parametrize("fault", ["another root", "a cut payload", "the wrong base"])
def test_a_diff_that_fails_leaves_the_old_version_held(fault: str, tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path / "model")
    new, payload = tiny_model.next_version(old)
    live = live_engine(old, tmp_path / "rolling")
    root, expected, error = new.root, old, BadPayload
    if fault == "another root":
        root = bytes(32)
    elif fault == "a cut payload":
        payload.write_bytes(payload.read_bytes()[:-5])
    else:
        live.step_by(payload, new.root, 0)
        expected, error = new, WrongBase
    asked = job(1, limit=20)
    before = generate(live, asked)
    with pytest.raises(error):
        live.step_by(payload, root, 0)
    assert generate(live, asked) == before
    assert Snapshot(tmp_path / "rolling" / "snapshot.safetensors").root == expected.root


NO_EPISODE: dict[str, tuple[dict[str, Any], str]] = {
    "a split that does not exist": ({"split": "test"}, "no such split"),
    "a task that does not exist": ({"task": "poker"}, "not in this build"),
}


@pytest.mark.parametrize("case", [*BAD_JOBS, *NO_EPISODE])
def test_a_job_that_cannot_be_done_is_refused(case: str, engine: TransformersEngine) -> None:
    fields, sentence = {**BAD_JOBS, **NO_EPISODE}[case]
    with pytest.raises((EngineError, LookupError), match=sentence):
        generate(engine, msgspec.structs.replace(job(), **fields))


BAD_SAMPLES: dict[str, tuple[list[Sample], str]] = {
    "too few samples": ([], "0 samples for 1 seeds"),
    "an empty sample": ([Sample(tokens=[], turns=[], logprobs=[])], "is empty"),
    "turns that do not add up": ([Sample(tokens=[2, 3], turns=[1], logprobs=[0.0])], "do not add up"),
    "a turn of no tokens": ([Sample(tokens=[2], turns=[1, 0], logprobs=[0.0])], "do not add up"),
    "a token outside the model": ([Sample(tokens=[2, 64], turns=[2], logprobs=[0.0, 0.0])], "outside the model"),
}


@pytest.mark.parametrize(("samples", "sentence"), BAD_SAMPLES.values(), ids=BAD_SAMPLES.keys())
def test_samples_that_cannot_be_scored_are_refused(
    samples: list[Sample], sentence: str, engine: TransformersEngine
) -> None:
    with pytest.raises(EngineError, match=sentence):
        engine.score(job(samples=1), samples)


def test_a_folder_that_is_no_model_says_so(tmp_path: Path, tiny: OnDisk) -> None:
    with pytest.raises(EngineError, match=r"no config\.json"):
        TransformersEngine().load(tmp_path, tiny.snapshot)
    (tmp_path / "config.json").write_text('{"model_type": "no such architecture"}')
    with pytest.raises(EngineError, match="cannot build"):
        TransformersEngine().load(tmp_path, tiny.snapshot)


STRANGE: dict[str, tuple[dict[str, Any], str]] = {
    "heads by which nothing can be divided": ({"num_attention_heads": 0}, "ZeroDivisionError"),
    "sizes below none": ({"num_key_value_heads": -2}, "RuntimeError: .*negative dimension"),
    "a size beyond all integers": ({"hidden_size": 10**30}, "TypeError"),
    "a type that is a list": ({"model_type": ["qwen3"]}, r"\['qwen3'\] is not a model type"),
    "a padding token beyond the vocabulary": ({"pad_token_id": 10**9}, "AssertionError"),
    "layers without end": ({"num_hidden_layers": 10**8}, "100,000,000 layers"),
    "code of its own": (
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}},
        r"code that comes with a model \(auto_map\) is never run",
    ),
    "attention from a repository of compiled code": (
        {"attn_implementation": "kernels-community/flash-attn"}, "code that comes with a model",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), STRANGE.values(), ids=STRANGE.keys())
def test_a_strange_config_is_a_sentence_and_runs_no_code(
    changes: dict[str, Any], why: str, tmp_path: Path, tiny: OnDisk
) -> None:
    config = json.loads((tiny.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with pytest.raises(EngineError, match=f"cannot build this model .*{why}"):
        TransformersEngine().load(tmp_path, tiny.snapshot)
    assert not (tmp_path / "ran").exists()


def test_a_model_beyond_the_memory_at_hand_is_refused_before_it_takes_any(
    tmp_path: Path, tiny: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It filled the memory until the kernel killed the engine, or another program, again after each restart."""
    config = json.loads((tiny.folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 10**6, "hidden_size": 1 << 20}))
    with pytest.raises(EngineError, match=r"no memory left for this model.* takes [\d,]+ MiB, and [\d,]+ MiB are"):
        TransformersEngine().load(tmp_path, tiny.snapshot)
    monkeypatch.setattr(transformers_engine, "free_memory", lambda device: 1000)
    with pytest.raises(EngineError, match="0 MiB are free"):
        TransformersEngine().load(tiny.folder, tiny.snapshot)


def test_weights_of_another_model_are_refused(tmp_path: Path, tiny: OnDisk) -> None:
    config = (tiny.folder / "config.json").read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    (tmp_path / "config.json").write_text(config.replace('"layer_types"', '"unused"'))
    with pytest.raises(BadSnapshot, match="another model"):
        TransformersEngine().load(tmp_path, tiny.snapshot)


def test_a_vocabulary_that_differs_is_refused_by_the_tensor_that_shows_it(tmp_path: Path, tiny: OnDisk) -> None:
    config = (tiny.folder / "config.json").read_text()
    changed = config.replace(f'"vocab_size": {TEXT.size}', f'"vocab_size": {TEXT.size + 8}')
    assert changed != config
    (tmp_path / "config.json").write_text(changed)
    with pytest.raises(BadSnapshot, match=r"embed_tokens\.weight"):
        TransformersEngine().load(tmp_path, tiny.snapshot)


def test_a_truncated_snapshot_is_refused(tmp_path: Path, tiny: OnDisk) -> None:
    cut = tmp_path / "cut.snapshot"
    cut.write_bytes(tiny.snapshot.read_bytes()[:-100])
    with pytest.raises(BadSnapshot):
        TransformersEngine().load(tiny.folder, cut)


TAKEN: dict[str, Exception] = {
    "a GPU": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "a processor": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    "Python": MemoryError(),
}


@pytest.mark.parametrize("error", TAKEN.values(), ids=TAKEN.keys())
def test_memory_that_another_program_took_in_mid_load_is_a_sentence_and_the_next_load_succeeds(
    error: Exception, tiny: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise error

    engine = TransformersEngine()
    with monkeypatch.context() as patched:
        patched.setattr(transformers_engine, "load_into", full)
        with pytest.raises(NoMemory, match="no memory left for this model: end other programs"):
            engine.load(tiny.folder, tiny.snapshot)
    engine.load(tiny.folder, tiny.snapshot)
    assert generate(engine, job())


def test_a_card_that_is_lost_in_mid_load_ends_the_process(tiny: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")

    monkeypatch.setattr(transformers_engine, "load_into", lost)
    with pytest.raises(ProgramLost, match=r"^the device failed: CUDA error: unspecified launch failure$"):
        TransformersEngine().load(tiny.folder, tiny.snapshot)


def test_another_error_of_a_load_is_passed_on(tiny: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("an illegal instruction")

    monkeypatch.setattr(transformers_engine, "load_into", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        TransformersEngine().load(tiny.folder, tiny.snapshot)


def test_weights_that_are_not_finite_are_an_error(tiny: OnDisk) -> None:
    broken = TransformersEngine()
    broken.load(tiny.folder, tiny.snapshot)
    with torch.no_grad():
        broken._live_model().model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(EngineError, match="not finite"):
        generate(broken, job())


def test_the_noise_is_taken_at_the_position_within_the_rollout(engine: TransformersEngine) -> None:
    asked = job(2, samples=1, limit=3)
    [sample] = generate(engine, asked)
    model = engine._live_model().model
    for position, token in enumerate(sample.tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*asked.prompt, *sample.tokens[:position]]])).logits[:, -1]
        assert sampling.choose(logits, sampling.keys([(asked.seeds[0], position)]))[0].item() == token
