"""Decode steps that are recorded and replayed. A recording of operations stands in for a CUDA graph; what needs a card
is left out where there is none."""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import structlog
import torch
from transformers import Qwen3MoeForCausalLM

from benchmarks.plays.direct import generate, generate_all
from echo2.engines.batch.continuous_batch import FirstToken, NextToken
from echo2.engines.engine import Job, Sample
from echo2.engines.transformers import step_graphs
from echo2.engines.transformers.decoder import Decoder
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.step_graphs import CudaRecorder, recorder_of, rows_of, span_of
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support import tiny_model
from tests.support.decoding import MODELS, Batched, mixed
from tests.support.recorded_operations import OperationRecorder, RecordedOperations

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def model(request: pytest.FixtureRequest) -> Any:
    return built(*request.param)


@pytest.fixture(scope="module")
def qwen() -> Any:
    return built(*MODELS["Qwen3"])


def built(make: Any, config: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    return make(config).eval().requires_grad_(False)


def played(decoder: Decoder, jobs: list[Job]) -> list[list[Sample]]:
    engine: Any = Batched(decoder)
    return generate_all(engine, jobs)


def plain(model: Any, jobs: list[Job]) -> list[list[Sample]]:
    return played(Decoder(model, CPU), jobs)


def check_alike(ours: list[list[Sample]], theirs: list[list[Sample]]) -> None:
    assert [[one.tokens for one in group] for group in ours] == [[one.tokens for one in group] for group in theirs]
    for one, other in zip(chain(*ours), chain(*theirs), strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("overlap", [False, True], ids=["read at once", "read a step later"])
def test_replayed_steps_give_the_tokens_that_rows_have_without_them(model: Any, overlap: bool) -> None:
    """Rows of all lengths arrive and leave; places move; buffers grow."""
    recorder = OperationRecorder()
    decoder = Decoder(model, CPU, overlap=overlap, recorder=recorder)
    ours = played(decoder, mixed() * 2)
    check_alike(ours, plain(model, mixed() * 2))
    assert decoder._graphs is not None
    assert recorder.replays > 2 * len(recorder.graphs) > 4


def test_with_the_shapes_of_plain_steps_every_bit_is_theirs(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "rows_of", lambda count: count)
    monkeypatch.setattr(step_graphs, "span_of", lambda tokens: tokens)
    monkeypatch.setattr(step_graphs, "RECORDED_STEP", 1)
    monkeypatch.setattr(step_graphs, "MOST_GRAPHS", 3)
    recorder = OperationRecorder()
    ours = played(Decoder(qwen, CPU, recorder=recorder), mixed())
    assert recorder.replays > 30
    assert ours == plain(qwen, mixed())


def test_a_step_reads_and_writes_at_the_same_addresses(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = OperationRecorder()
    decoder = Decoder(qwen, CPU, recorder=recorder)
    assert decoder._graphs is not None
    addresses = set[tuple[int, ...]]()
    whole = decoder._step_logits

    def watched(fed: torch.Tensor) -> torch.Tensor:
        cache = decoder._cache
        addresses.add((fed.data_ptr(), cache.positions.data_ptr(), cache.places.data_ptr(), *cache.addresses))
        return whole(fed)

    monkeypatch.setattr(decoder, "_step_logits", watched)
    prompts = decoder.prefill([[5, 6, 7], [9, 8, 7, 6]])
    decoder.decode([], [FirstToken(prompt, bytes(16), False) for prompt in prompts])
    with torch.inference_mode():
        outputs = {decoder._next_logits(rows(number)).data_ptr() for number in range(20)}
    assert len(addresses) == len(outputs) == len(recorder.graphs) == 1
    assert recorder.replays == 20 - step_graphs.RECORDED_STEP + 1


def rows(number: int) -> list[NextToken]:
    return [NextToken((11 + number) % 64, length + number, bytes(16), number, False) for length in (3, 4)]


def test_weights_patched_in_place_are_those_of_the_next_replay(tmp_path: Any) -> None:
    old = tiny_model.make(tmp_path / "model")
    first = Snapshot(old.snapshot)
    recorder = OperationRecorder()

    class Recorded(TransformersEngine):
        def decoder(self, model: Any) -> Decoder:
            return Decoder(model, CPU, recorder=recorder)

    engine, asked = Recorded(), tiny_model.job(3, samples=4, limit=30)
    Rolling.create(tmp_path / "rolling", first)
    engine.load(old.folder, tmp_path / "rolling")
    before = generate(engine, asked)
    addresses = [one.data_ptr() for one in engine._live_model().model.parameters()]
    graphs, replays = len(recorder.graphs), recorder.replays
    new, payload = tiny_model.next_version(old, 0.5)
    engine.step_by(payload, new.root, 2)
    after = generate(engine, asked)
    fresh = TransformersEngine()
    fresh.load(new.folder, new.snapshot)
    check_alike([after], [generate(fresh, asked)])
    assert [one.tokens for one in after] != [one.tokens for one in before]
    assert [one.data_ptr() for one in engine._live_model().model.parameters()] == addresses
    assert len(recorder.graphs) == graphs
    assert recorder.replays > replays


def test_a_buffer_that_moves_takes_all_graphs_with_it(qwen: Any) -> None:
    recorder = OperationRecorder()
    decoder, other = Decoder(qwen, CPU, recorder=recorder), Decoder(qwen, CPU)
    assert decoder._graphs is not None
    for one in (decoder, other):
        prompts = one.prefill([[5, 6, 7], [9, 8, 7, 6]])
        one.decode([], [FirstToken(prompt, bytes(16), False) for prompt in prompts])
    with torch.inference_mode():
        for number in range(150):
            ours, theirs = decoder._next_logits(rows(number)), other._next_logits(rows(number))
            assert torch.allclose(ours, theirs, atol=1e-5)
    assert list(decoder._graphs._graphs) == [(2, 192)]
    assert len(recorder.graphs) == 4, "of 64, 128, 132 and 192 tokens: at 67 and 132 the buffer ends"
    decoder.reset()
    assert not decoder._graphs._graphs


def test_the_graph_that_was_not_used_for_longest_goes(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_graphs, "MOST_GRAPHS", 2)
    monkeypatch.setattr(step_graphs, "RECORDED_STEP", 1)
    decoder = Decoder(qwen, CPU, recorder=OperationRecorder())
    assert decoder._graphs is not None
    prompts = decoder.prefill([[5, 6, 7], [9, 8, 7, 6]]) * 2
    decoder.decode([], [FirstToken(prompt, bytes(16), False) for prompt in prompts])
    with torch.inference_mode():
        for count in (1, 2, 1, 4):
            decoder._next_logits((rows(0) * 2)[:count])
    assert list(decoder._graphs._graphs) == [(1, 64), (4, 64)]


def test_groups_begin_again_after_an_out_of_memory(qwen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, failed = OperationRecorder(), list[int]()
    decoder = Decoder(qwen, CPU, recorder=recorder)
    whole = decoder._step_logits

    def short(fed: torch.Tensor) -> torch.Tensor:
        if len(fed) > 4:
            failed.append(len(fed))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(fed)

    monkeypatch.setattr(decoder, "_step_logits", short)
    check_alike(played(decoder, mixed()), plain(qwen, mixed()))
    assert failed
    assert recorder.replays


Change = Callable[[Any, OperationRecorder, pytest.MonkeyPatch], None]


def waiting(model: Any, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.base_model.norm.forward

    def asking(hidden: torch.Tensor) -> Any:
        return whole(hidden) if float(hidden[0, 0, 0]) < 1e9 else hidden

    monkeypatch.setattr(model.base_model.norm, "forward", asking)


def failing(model: Any, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(recorder, "record", record)


def wrong(model: Any, recorder: OperationRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordedOperations, "replay", lambda graph: None)  # as if it were of the step before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (waiting, "RuntimeError: called a synchronizing operation: item"),
        (failing, "AcceleratorError: CUDA error: operation not permitted when stream is capturing"),
        (wrong, "a replayed step gives other logits"),
    ],
    ids=["a model that waits", "a recording that fails", "a replay of other logits"],
)
def test_where_graphs_do_not_work_steps_are_computed_as_ever_and_the_log_says_it_once(
    qwen: Any, change: Change, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, recorder = copy.deepcopy(qwen), OperationRecorder()
    decoder = Decoder(model, CPU, recorder=recorder)
    change(model, recorder, monkeypatch)
    with structlog.testing.capture_logs() as logs:
        decoder.check()
        check_alike(played(decoder, mixed()), plain(qwen, mixed()))
    assert [one["reason"] for one in logs] == [reason]
    assert decoder._graphs is None


def test_a_model_whose_replays_agree_passes_the_check_with_its_graphs(qwen: Any) -> None:
    recorder = OperationRecorder()
    decoder = Decoder(qwen, CPU, recorder=recorder)
    plain_row = Decoder(qwen, CPU).memory().row
    decoder.check()
    assert decoder._graphs is not None
    assert (len(recorder.graphs), recorder.replays) == (1, 4)
    assert decoder.memory().row > plain_row


def test_sizes_are_few_and_hardly_larger_than_asked() -> None:
    sizes = {count: rows_of(count) for count in range(1, 257)}
    assert sorted(set(sizes.values())) == [1, 2, 4, *range(8, 257, 8)]
    assert all(count <= size < count + 8 for count, size in sizes.items())
    spans = {tokens: span_of(tokens) for tokens in range(1, 32769)}
    assert len(set(spans.values())) == 56
    assert all(tokens <= span <= max(tokens + 63, tokens * 9 // 8) for tokens, span in spans.items())


def test_graphs_are_recorded_on_nvidias_cards_alone_and_where_the_owner_does_not_forbid_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = torch.device("cuda")
    monkeypatch.setattr(step_graphs, "CudaRecorder", lambda device: device)
    monkeypatch.setattr(torch.version, "hip", None)
    assert recorder_of(card, {}) == card
    assert recorder_of(card, {step_graphs.VARIABLE: "off"}) is None
    assert [recorder_of(torch.device(kind), {}) for kind in ("cpu", "mps", "xpu", "meta")] == [None] * 4
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert recorder_of(card, {}) is None


class PlayedCuda:
    """Plays what a recording uses of torch.cuda. `events`: its calls, in order. `broken`: what raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, broken: str = "") -> None:
        self.events: list[str] = []
        self.counted = set[tuple[int, int]]()
        """The recordings that the allocator counts as under way."""
        self.broken, self.mode, self.handles = broken, "default", 0
        cuda = self

        class Graph:
            def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                cuda.note("begin", pool)
                cuda.counted.add(pool)
                self.pool = pool

            def capture_end(self) -> None:
                if cuda.broken == "end":  # as PyTorch does: the allocator is told after the call that fails
                    raise torch.AcceleratorError("CUDA error: invalidated")
                cuda.counted.remove(self.pool)
                cuda.note("end")

            def replay(self) -> None:
                cuda.note("replay")

        class Stream:
            def __init__(self, device: torch.device) -> None:
                self.device_index = device.index

            def wait_stream(self, other: str) -> None:
                cuda.note("wait for", other)

        class Within:
            def __init__(self, stream: Stream) -> None:
                pass

            def __enter__(self) -> None:
                cuda.note("side stream")

            def __exit__(self, *_: object) -> None:
                cuda.note("own stream")

        def take_back(index: int, pool: tuple[int, int]) -> None:
            assert index == 0
            if pool not in cuda.counted:
                raise RuntimeError("not currently recording")
            cuda.counted.remove(pool)
            cuda.note("taken back")

        for name, value in {
            "CUDAGraph": Graph, "Stream": Stream, "stream": Within, "current_stream": lambda device: "present",
            "graph_pool_handle": self.handle, "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", take_back, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", self.release, raising=False)

    def handle(self) -> tuple[int, int]:
        self.handles += 1
        return 0, self.handles

    def release(self, index: int, pool: tuple[int, int]) -> None:
        self.note("released")

    def note(self, *words: Any) -> None:
        self.events.append(" ".join(str(word) for word in words))


CARD = torch.device("cuda", 0)


def test_a_recording_takes_place_beside_the_stream_and_shares_memory_with_the_graphs_at_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = PlayedCuda(monkeypatch)
    recorder = CudaRecorder(CARD)
    first = recorder.record(lambda: cuda.note("compute"), None)
    assert cuda.events == ["wait for present", "side stream", "begin (0, 1)", "compute", "end", "own stream"]
    second = recorder.record(lambda: None, first)
    assert second.pool == first.pool == (0, 1)
    assert recorder.record(lambda: None, None).pool == (0, 2), "memory of graphs that are gone is not to be shared"
    second.replay()
    assert cuda.events[-1] == "replay"


@pytest.mark.parametrize("broken", ["compute", "end"])
def test_after_a_recording_that_failed_the_allocator_counts_none_as_under_way(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = PlayedCuda(monkeypatch, broken)

    def compute() -> None:
        if broken == "compute":
            raise RuntimeError("a shape")

    with pytest.raises(RuntimeError, match="a shape" if broken == "compute" else "invalidated"):
        CudaRecorder(CARD).record(compute, None)
    assert not cuda.counted
    assert cuda.events[3:] == (
        ["end", "own stream"] if broken == "compute" else ["own stream", "taken back", "released"]
    )


def test_waits_are_forbidden_until_the_end_of_the_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PlayedCuda(monkeypatch)
    modes = list[str]()

    def step() -> None:
        modes.append(cuda.mode)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), CudaRecorder(CARD).forbid_waits():
        step()
    assert (modes, cuda.mode) == (["error"], "default")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_on_cuda_replayed_steps_give_the_tokens_of_plain_ones(model: Any) -> None:
    card = torch.device("cuda")
    there = copy.deepcopy(model).to(card)
    decoder = Decoder(there, card, recorder=recorder_of(card, {}))
    decoder.check()
    if not isinstance(model, Qwen3MoeForCausalLM):
        assert decoder._graphs is not None
    check_alike(played(decoder, mixed() * 2), played(Decoder(there, card), mixed() * 2))
