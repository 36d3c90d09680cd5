"""Candidates in processes of their own: a crash, a hang or a lack of memory loses that candidate alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from echo2.engines import registry
from echo2.engines.process import trials
from echo2.engines.process.candidates import Candidate, Trial, best, candidates
from echo2.engines.process.process import EngineProcess
from echo2.engines.rate import Rate, TaskShare, Workload
from echo2.tasks import tokenizer
from tests.support.bigram import random_table, write_table
from tests.support.faulty_engine import FAULTY

WORK = Workload(tasks=(TaskShare(name="reverse", version=1),), limit=16, group=4, eos=tokenizer.EOS)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process know the faulty engine too."""
    monkeypatch.setitem(registry._ROWS, FAULTY.name, FAULTY)


def process() -> EngineProcess:
    return EngineProcess(module="tests.support.faulty_engine")


@pytest.mark.slow
async def test_a_crash_a_hang_and_a_lack_of_memory_lose_one_candidate_each(
    tmp_path: Path, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "SILENT_SECONDS", 8.0)
    monkeypatch.setattr(trials, "MEASURED_SECONDS", 0.3)
    tokenizer.char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    table = write_table(tmp_path / "table.safetensors", random_table(0, 64))
    seen = await trials.sights(process, ["faulty"])
    ready, lost = candidates(seen, lambda engine_class: "")
    assert [one.device for one in ready] == ["cuda:0", "cuda:1", "cuda:2", "cpu"]
    done = await trials.run_trials(process, ready, tmp_path, table.path, WORK)
    assert [one.candidate for one in done] == ready
    assert not lost
    assert [one.fault for one in done] == [
        "engine ended with -9: no output", "no answer within 8 s", "out of memory: another program has it", "",
    ]  # fmt: skip
    chosen = best(done)
    assert chosen is done[3]
    assert done[3].rate is not None
    assert done[3].rate.tokens > 0


async def test_where_a_gpu_works_the_cpu_is_not_timed_and_time_is_bounded(
    tmp_path: Path, registered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ALL_TRIALS_SECONDS", 0.0)
    ready, _ = candidates(await trials.sights(process, ["faulty"]), lambda engine_class: "")
    done = await trials.run_trials(process, ready, tmp_path, tmp_path, WORK)
    assert {one.fault for one in done} == {"not timed: the others took 0 s"}


async def test_a_machine_without_a_gpu_asks_no_process(registered: None) -> None:
    def none() -> EngineProcess:
        pytest.fail("a process was asked")

    (sight,) = await trials.sights(none, ["faulty", "an engine that is not here"], alone=True)
    assert (sight.engine, sight.inventory.gpus) == ("faulty", {})
    assert sight.inventory.cpu


async def test_an_engine_that_cannot_look_is_told_with_its_fault(registered: None) -> None:
    def broken() -> EngineProcess:
        return EngineProcess(module="no.such.module")

    (sight,) = await trials.sights(broken, ["faulty"])
    assert "engine ended with 1" in sight.fault
    assert candidates([sight], lambda engine_class: "") == ([], [])


def of(engine: str, device: str) -> Candidate:
    return Candidate(engine=engine, dtype="float32", device=device, hardware="it")


@pytest.mark.parametrize(
    ("starts", "faults"),
    [
        (True, ["not timed: vllm works here", "", "not timed: vllm works here"]),
        (False, ["", "it ended", "not timed: a GPU works"]),
    ],
    ids=["vLLM starts", "vLLM does not start"],
)
async def test_vllm_is_taken_for_cuda_where_it_starts_and_all_others_are_timed_where_not(
    starts: bool, faults: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = []

    async def trial(make: object, one: Candidate, *_: object) -> Trial:
        order.append(one.engine)
        if one.engine == "vllm" and not starts:
            return Trial(candidate=one, fault="it ended")
        return Trial(candidate=one, rate=Rate(tokens=9, seconds=1.0, cpu_seconds=1.0, rows=1))

    monkeypatch.setattr(trials, "_trial", trial)
    ready = [of("transformers", "cuda:0"), of("vllm", "cuda:0"), of("transformers", "cpu")]
    done = await trials.run_trials(process, ready, tmp_path, tmp_path, WORK)
    assert order[0] == "vllm"
    assert [one.candidate for one in done] == ready
    assert [one.fault for one in done] == faults
    order.clear()
    await trials.run_trials(process, ready, tmp_path, tmp_path, WORK, every=True)
    assert order == ["transformers", "vllm", "transformers"]
