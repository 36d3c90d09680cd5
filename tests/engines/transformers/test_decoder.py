"""EngineRows of different lengths in one step, for every architecture that runs are made of."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen3MoeForCausalLM

from benchmarks.plays.direct import generate_all
from echo2.engines.batch.continuous_batch import MOST_STEPWISE_TOKENS, NextToken, OutOfMemory
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.batch.row_limit import MEMORY_SHARE
from echo2.engines.devices import host_transfers
from echo2.engines.engine import EngineError, Job, NoMemory, Sample, SampledTurn
from echo2.engines.sampling import sampling
from echo2.engines.transformers import decoder as decoder_module
from echo2.engines.transformers.decoder import Decoder
from echo2.tasks.task import sampled_mask
from tests.support.decoding import MODELS, Batched, job, mixed
from tests.support.served import play, served

MARGIN = 5e-4
DRIFT = 5e-5
SIXTEEN = [(torch.float16, 0.05), (torch.bfloat16, 0.5)]
"""Type, and the bound of margins and log-probabilities against a plain pass in the same type."""


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def model(request: pytest.FixtureRequest) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    make, config = request.param
    return make(config).eval().requires_grad_(False)


def groups(model: Any, jobs: list[Job], *, limit: int | None = None, overlap: bool = False) -> list[list[Sample]]:
    engine: Any = Batched(Decoder(model, torch.device("cpu"), overlap=overlap), limit)
    return generate_all(engine, jobs)


def rerouted(model: Any) -> float:
    """Return the share of tokens that may exceed a bound in 16 bits: where two experts of a mixture are nearly equal,
    rounding may choose the other. 0.31 nats were seen in float16, on CPUs without AVX-512 and with AMX."""
    return 0.05 if "Moe" in type(model).__name__ else 0.0


def check_against_plain_passes(model: Any, job: Job, samples: list[Sample]) -> None:
    """Compare with the library itself, prompt and completion in one pass: the tokens are the seeded choices."""
    assert beyond(model, job, samples, MARGIN, DRIFT)[0] == 0


def check_in_16_bits(model: Any, jobs: list[Job], played: list[list[Sample]], bound: float) -> None:
    """The same in 16 bits, but for the tokens that may be rerouted."""
    counts = [beyond(model, one, samples, bound, bound) for one, samples in zip(jobs, played, strict=True)]
    assert sum(wrong for wrong, _ in counts) <= rerouted(model) * sum(tokens for _, tokens in counts)


def beyond(model: Any, job: Job, samples: list[Sample], margin: float, drift: float) -> tuple[int, int]:
    """Count the tokens whose choice or log-probability is not that of a plain pass, and all tokens."""
    wrong = tokens = 0
    for seed, sample in zip(job.seeds, samples, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*job.prompt, *sample.tokens]])).logits[0, len(job.prompt) - 1 : -1].float()
        keys = sampling.keys([(seed, number) for number in range(len(sample.tokens))])
        margins, logprobs, _ = sampling.margin(logits, keys, torch.tensor(sample.tokens))
        apart = (torch.tensor(sample.logprobs) - logprobs).abs()
        wrong += int(((margins > margin) | ~(apart <= drift)).sum())
        tokens += len(sample.tokens)
    return wrong, tokens


def check_against_a_plain_pass(model: Any, job: Job, seed: bytes, sample: Sample) -> None:
    """The same for a rollout of several turns, of which the given ones were not sampled."""
    with torch.no_grad():
        logits = model(torch.tensor([[*job.prompt, *sample.tokens]])).logits[0, len(job.prompt) - 1 : -1].float()
    sampled = [number for number, ours in enumerate(sampled_mask(sample.turns)) if ours]
    keys = sampling.keys([(seed, number) for number in sampled])
    tokens = torch.tensor([sample.tokens[number] for number in sampled])
    margins, logprobs, _ = sampling.margin(logits[sampled], keys, tokens)
    assert float(margins.max()) <= MARGIN
    assert sample.logprobs == pytest.approx(logprobs.tolist(), abs=DRIFT)


@pytest.mark.parametrize("overlap", [False, True], ids=["read at once", "read a step later"])
@pytest.mark.slow
def test_rows_of_mixed_lengths_have_the_tokens_that_they_have_alone(model: Any, overlap: bool) -> None:
    together = groups(model, mixed(), overlap=overlap)
    for one, samples in zip(mixed(), together, strict=True):
        check_against_plain_passes(model, one, samples)
        (alone,) = groups(model, [one])
        assert [sample.tokens for sample in alone] == [sample.tokens for sample in samples]


@pytest.mark.parametrize("overlap", [False, True], ids=["read at once", "read a step later"])
@pytest.mark.parametrize("late", [0, 5])
@pytest.mark.slow_but("Llama-5-read at once")
def test_rows_that_wait_for_answers_go_on_as_if_they_had_never_waited(model: Any, overlap: bool, late: int) -> None:
    def answer(sampled_turn: SampledTurn) -> list[int] | None:
        answers = {
            0: [9, 8, 7],
            2: [9, 8, 7] * MOST_STEPWISE_TOKENS,
        }  # the first goes through the steps, the second does not
        return answers.get(sampled_turn.turn_number)

    jobs = [served(one, bytes([number + 1])) for number, one in enumerate(mixed())]
    engine: Any = Batched(Decoder(model, torch.device("cpu"), overlap=overlap))
    groups_played = play(engine, [(one, answer) for one in jobs], late=late)
    assert any(len(sample.turns) > 2 for samples in groups_played for sample in samples)
    for one, samples in zip(jobs, groups_played, strict=True):
        for seed, sample in zip(one.seeds, samples, strict=True):
            check_against_a_plain_pass(model, one, seed, sample)


@pytest.mark.parametrize("overlap", [False, True], ids=["read at once", "read a step later"])
@pytest.mark.parametrize(("dtype", "bound"), SIXTEEN, ids=["float16", "bfloat16"])
@pytest.mark.slow_but("Llama-float16-read a step later")
def test_in_16_bits_rows_of_mixed_lengths_stay_near_the_plain_pass(
    model: Any, dtype: torch.dtype, bound: float, overlap: bool
) -> None:
    """Rows computed together and alone differ in near-ties there: each token is the seeded choice within rounding."""
    model = copy.deepcopy(model).to(dtype)
    for asked in (mixed(), mixed()[-1:]):
        check_in_16_bits(model, asked, groups(model, asked, overlap=overlap), bound)


@pytest.mark.parametrize(("dtype", "bound"), SIXTEEN, ids=["float16", "bfloat16"])
@pytest.mark.slow_but("Llama-bfloat16")
def test_in_16_bits_groups_begin_again_after_an_out_of_memory(
    model: Any, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(model).to(dtype)
    engine, failed = short_of_memory(model, torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
    together = generate_all(engine, mixed())
    assert failed
    check_in_16_bits(model, mixed(), together, bound)


def test_every_model_of_the_list_passes_the_check_at_loading(model: Any) -> None:
    decoder = Decoder(model, torch.device("cpu"))
    decoder.check()
    assert decoder.memory().token == 2 * 4 * 2 * 8 * 4
    for dtype, _ in SIXTEEN:
        decoder = Decoder(copy.deepcopy(model).to(dtype), torch.device("cpu"))
        decoder.check()
        assert decoder.memory().token == 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_model_whose_rows_depend_on_each_other_is_refused(
    dtype: torch.dtype, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(model).to(dtype)
    Decoder(model, torch.device("cpu")).check()
    whole = model.base_model.forward

    def blurred(*args: Any, **kwargs: Any) -> Any:
        answer = whole(*args, **kwargs)
        answer.last_hidden_state = answer.last_hidden_state.mean(0, keepdim=True).expand_as(answer.last_hidden_state)
        return answer

    monkeypatch.setattr(model.base_model, "forward", blurred)
    with pytest.raises(EngineError, match="rows of several lengths"):
        Decoder(model, torch.device("cpu")).check()


@pytest.mark.parametrize("overlap", [False, True], ids=["read at once", "read a step later"])
def test_a_row_that_is_not_finite_fails_its_group_and_leaves_the_places_clean(
    model: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Decoder(model, torch.device("cpu"), overlap=overlap)
    engine: Any = Batched(decoder, 4)
    good, bad = job(1, 2, 20, [5, 6, 7]), job(2, 2, 20, [9, 8])
    (alone,) = groups(model, [good])
    engine.begin(0, good)
    engine.begin(1, bad)
    engine.step()
    with torch.inference_mode():
        for layer in decoder._cache.layers:
            layer.values[2:] = torch.nan
    outcomes: dict[int, Any] = {}
    while len(outcomes) < 2:
        outcomes.update(dict(engine.step()))
    assert "not finite" in str(outcomes[1])
    assert [sample.tokens for sample in outcomes[0]] == [sample.tokens for sample in alone]
    assert all(bool(layer.values.isfinite().all()) for layer in decoder._cache.layers)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
@pytest.mark.slow_but("Llama-error0")
def test_out_of_memory_of_a_gpu_and_of_a_processor_begins_the_groups_again(
    model: Any, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, failed = short_of_memory(model, error, monkeypatch)
    together = generate_all(engine, mixed())
    assert failed
    assert [[sample.tokens for sample in group] for group in together] == [
        [sample.tokens for sample in group] for group in groups(model, mixed())
    ]


def test_where_not_even_one_row_fits_the_sentence_says_which_limit_of_a_run_does(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card whose free memory holds 30 tokens of a row, in the part that rows may take."""
    decoder = Decoder(model, torch.device("cpu"))
    cost = decoder.memory()
    free = math.ceil((30 * cost.token + cost.row) / MEMORY_SHARE)
    monkeypatch.setattr(decoder_module, "free_memory", lambda device: free)
    whole = decoder._next_logits

    def short(rows: Sequence[NextToken]) -> Any:
        if any(row.position >= 30 for row in rows):
            raise OutOfMemory("CUDA out of memory")
        return whole(rows)

    monkeypatch.setattr(decoder, "_next_logits", short)
    engine: Any = Batched(decoder)
    with pytest.raises(NoMemory, match=r"no rollout of this length fits.* with a limit of at most 27 tokens for such"):
        generate_all(engine, [msgspec.structs.replace(job(1, 1, 60, [5, 6, 7]), eos=-1)])


def short_of_memory(model: Any, error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """Return an engine whose steps of more than 6 rows end with `error`, and the rows of those that did."""
    decoder = Decoder(model, torch.device("cpu"))
    whole, failed = decoder._cache.step, list[int]()

    def full(positions: list[int]) -> None:
        if len(positions) > 6:
            failed.append(len(positions))
            raise error
        whole(positions)

    def reset() -> None:
        nonlocal whole
        Decoder.reset(decoder)
        whole = decoder._cache.step
        monkeypatch.setattr(decoder._cache, "step", full)

    monkeypatch.setattr(decoder._cache, "step", full)
    monkeypatch.setattr(decoder, "reset", reset)
    return Batched(decoder), failed


GONE: dict[str, RuntimeError] = {
    "CUDA": torch.AcceleratorError("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA"),
    "XPU": RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
}


@pytest.mark.parametrize("error", GONE.values(), ids=GONE.keys())
def test_a_gpu_that_vanishes_in_a_step_ends_the_program_with_its_first_sentence(
    model: Any, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be computed in such a process any more: a group's error alone would cost lease after lease."""
    decoder = Decoder(model, torch.device("cpu"))
    engine: Any = Batched(decoder)

    def gone(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(decoder, "_next_logits", gone)
    with pytest.raises(ProgramLost, match=r"^the device failed: .*(launch failure|DEVICE_LOST\))$"):
        generate_all(engine, [job(1, 2, 9, [5, 6])])


def test_another_error_is_passed_on(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(model, torch.device("cpu"))

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("an illegal instruction")

    monkeypatch.setattr(decoder, "_pass", broken)
    with pytest.raises(RuntimeError, match="illegal"):
        decoder.prefill([[2, 3]])
    monkeypatch.setattr(decoder, "_head", broken)
    with pytest.raises((RuntimeError, OutOfMemory), match="illegal"):
        decoder.prefill([[2, 3]])


class OnMeta:
    """Decodes on PyTorch's device `meta`, which computes shapes alone: whatever asks it for a value raises. The one
    read of a step is replaced by tokens that this object makes up. `events`: steps and reads, in order."""

    def __init__(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        monkeypatch.setattr(decoder_module, "download", self.download)
        self.decoder = Decoder(copy.deepcopy(model).to("meta"), torch.device("meta"), overlap=True)
        self.engine: Any = Batched(self.decoder)

    def download(self, parts: Sequence[torch.Tensor]) -> Any:
        assert all(part.device.type == "meta" for part in parts)
        number, rows = len([event for event in self.events if event.startswith("step")]), len(parts[0])
        self.events.append(f"step {number}")

        def read() -> list[list[Any]]:
            self.events.append(f"read {number}")
            return [[5 + (number + row) % 20 for row in range(rows)], [-0.5] * rows]

        return read


class CountedStream(TorchDispatchMode):
    """Plays the stream of a device that has pinned memory, on the device meta. `copies`: those that came from the host.
    `waits`: those of them that PyTorch would make with a wait for all work begun before: from memory that is not
    pinned, or without `non_blocking`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.copies = self.waits = 0
        self._pinned = list[torch.Tensor]()
        monkeypatch.setattr(host_transfers, "PINNED_DEVICE_KINDS", ("meta",))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self._pin(tensor))

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned.append(tensor)  # kept, so that no other tensor has its place
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy, torch.ops.aten.copy_):
            names = [one.name for one in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            source = given.get("src", given["self"])
            if source.device.type == "cpu" and result.device.type == "meta":
                pinned = any(source.data_ptr() == one.data_ptr() for one in self._pinned)
                self.copies += 1
                self.waits += not (pinned and given.get("non_blocking", False))
        return result


def test_what_a_step_needs_of_the_host_is_copied_without_a_wait_for_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    make, config = MODELS["Qwen3"]
    meta = OnMeta(make(config), monkeypatch)
    with CountedStream(monkeypatch) as stream:
        generate_all(meta.engine, [job(1, 2, 9, [4, 5]), job(2, 1, 5, [7, 8, 9])])
        steps = sum(event.startswith("step") for event in meta.events)
        assert stream.copies > 2 * steps, "positions and keys of each"
        assert stream.waits == 0
        torch.tensor([1, 2]).to("meta", non_blocking=True)
        torch.tensor([1, 2]).pin_memory().to("meta")
        assert stream.waits == 2


def test_temperatures_of_several_groups_are_copied_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with CountedStream(monkeypatch) as stream:
        sampling.temper(torch.ones(2, 5, device="meta"), [1000, 700])
    assert (stream.copies, stream.waits) == (1, 0)


@pytest.mark.slow_but("Qwen3-MoE")
def test_no_step_asks_the_device_for_a_value_but_the_one_read_that_lags_a_step(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several parts, rows that end and make room, greedy rows beside others: all without a wait."""
    if isinstance(model, Qwen3MoeForCausalLM):
        pytest.skip("PyTorch's device meta computes the products of experts in bfloat16 alone")
    meta = OnMeta(model, monkeypatch)
    greedy = msgspec.structs.replace(job(30, 2, 9, [4, 5]), greedy=True)
    jobs = [*mixed(), greedy, job(31, 2, 3, [7] * 600)]
    samples = generate_all(meta.engine, jobs)
    assert [len(group) for group in samples] == [len(one.seeds) for one in jobs]
    assert all(len(one.tokens) == asked.limit for asked, group in zip(jobs, samples, strict=True) for one in group)
    steps = len(meta.events) // 2
    assert steps > 30
    pairs = [(f"step {number}", f"read {number - 1}") for number in range(1, steps)]
    assert meta.events[0] == "step 0"
    assert meta.events[1 : 2 * steps - 1] == [event for pair in pairs for event in pair]


@pytest.mark.parametrize("ask", [torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.nonzero])
@pytest.mark.slow_but("nonzero")
def test_a_step_that_asked_for_a_value_would_not_pass_that_test(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make, config = MODELS["Qwen3"]
    meta, whole = OnMeta(make(config), monkeypatch), sampling.choose

    def asking(logits: torch.Tensor, keys: torch.Tensor) -> Any:
        tokens, logprobs = whole(logits, keys)
        ask(tokens[:1])
        return tokens, logprobs

    monkeypatch.setattr(sampling, "choose", asking)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"meta|data-dependent"):
        generate_all(meta.engine, mixed())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_on_cuda_no_step_waits_for_the_device(model: Any) -> None:
    """PyTorch's own check of the same: it raises where an operation waits."""
    device = torch.device("cuda")
    decoder = Decoder(copy.deepcopy(model).to(device), device)
    engine: Any = Batched(decoder)
    for ticket, one in enumerate(mixed()):
        engine.begin(ticket, one)
    engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
