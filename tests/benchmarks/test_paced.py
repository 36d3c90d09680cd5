"""Runs whose steps and groups take given times: the engine that waits, and the figures."""

import inspect
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks import bubble, loop
from benchmarks.harness.log_events import Event
from benchmarks.paced.paced_host import AT_ONCE, GROUP_SECONDS, PacedHost
from benchmarks.paced.paced_run import BATCH, NODES, Looked, Pace, PacedFigures, figures
from echo2.coordinator.demo.processes import ProcessorTimes
from echo2.engines.engine import EngineRows, Job
from echo2.engines.process.host import EngineHost
from echo2.engines.process.messages import GenerateCall
from tests.support import pictures

JOB = Job(prompt=[1], seeds=[b""], limit=1, eos=2, task="reverse", task_version=1, split="train", index=0)
FIGURES = PacedFigures(idle=0.02, period=2.0, accepted=1.0, age=3.0, busy=0.4, supply=1.1)


class QuickEngine:
    """An engine whose groups are done with the next step."""

    idle, rows = False, EngineRows(limit=8)

    def __init__(self) -> None:
        self._begun = list[int]()

    def begin(self, ticket: int, job: Job) -> None:
        self._begun.append(ticket)

    def cancel(self, ticket: int) -> None: ...

    def turns(self) -> list[Any]:
        return []

    def step(self) -> list[Any]:
        begun, self._begun = self._begun, []
        return [SimpleNamespace(ticket=ticket, outcome=[]) for ticket in begun]


@pytest.mark.parametrize(("at_once", "ends"), [(1, [102.0, 104.0, 106.0]), (2, [102.0, 102.0, 104.0])])
def test_a_paced_engine_makes_so_many_groups_at_a_time(
    monkeypatch: pytest.MonkeyPatch, at_once: int, ends: list[float]
) -> None:
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setenv(GROUP_SECONDS, "2")
    monkeypatch.setenv(AT_ONCE, str(at_once))
    monkeypatch.setattr(
        "benchmarks.paced.paced_host.time", type("Time", (), {"monotonic": lambda: now, "sleep": sleep})
    )
    host: Any = PacedHost(lambda rows: None, lambda sampled_turn: None)
    host._engine = QuickEngine()
    for id in (1, 2, 3):
        host.begin(id, GenerateCall(job=JOB))
    answered = dict[int, float]()
    while len(answered) < 3:
        assert not host.idle
        for id, _ in host.step():
            answered[id] = now
    assert [answered[id] for id in (1, 2, 3)] == pytest.approx(ends, abs=0.05)


def test_a_paced_engine_is_made_as_the_child_of_a_node_makes_its_engine() -> None:
    assert list(inspect.signature(PacedHost).parameters) == list(inspect.signature(EngineHost).parameters)


def looked(step: int, accepted: int, staleness: list[int], busy: float) -> Looked:
    state = msgspec.structs.replace(pictures.BUSY, step=step, accepted=accepted, buffered=4, staleness=staleness)
    return Looked(state, ProcessorTimes(busy, 3 * busy))


def test_figures_are_those_between_the_two_looks() -> None:
    logged = list[Event]()
    for step in range(1, 12):  # a step of 2 s, then 0.5 s without a batch
        begun = 2.5 * step
        logged += [Event("step begun", begun, {"step": step}), Event("step made", begun + 2.0, {"step": step})]
    first = looked(5, 5 * BATCH + 4, [40], 10.0)
    last = looked(10, 11 * BATCH + 4, [40, 10, 30], 20.0)
    got = figures(Pace(12, 0.8, 2.0), logged, first, last)
    assert got == pytest.approx((0.2, 2.0, 1.2, 1.75, 0.25, 0.8))


def test_the_supply_of_a_pace_is_that_of_all_nodes_together() -> None:
    pace = Pace(10, 1.5, 2.0)
    assert NODES / pace.group_seconds == pytest.approx(1.5 * BATCH / 2.0)


@pytest.mark.parametrize(("busy", "idle", "status"), [(0.5, 0.02, 0), (0.5, 0.06, 1), (0.8, 0.02, 2)])
def test_there_is_no_verdict_where_the_machine_was_busy(
    busy: float, idle: float, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    enough, short = FIGURES._replace(busy=busy, idle=idle), FIGURES._replace(idle=0.22, supply=0.8)
    assert bubble.verdict([enough, short], bubble.closing(enough, short)) == status
    assert ("no verdict" in capsys.readouterr().out) == (status == 2)


def test_a_run_that_waits_longer_than_room_is_short() -> None:
    claims = loop.closing(FIGURES, FIGURES._replace(idle=0.005))
    assert [claim.ok for claim in claims] == [True, True, False]
