"""The choice of an engine: what is timed, what is kept, and when it is timed again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.engines import registry
from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.process.candidates import Candidate, Sight, Trial
from echo2.engines.process.process import EngineProcess
from echo2.engines.rate import Rate
from echo2.node import engine_choice
from echo2.node.config import NodeConfig
from echo2.node.engine_choice import FILE, EngineChoice, read_record
from echo2.node.engine_devices import spread_over
from echo2.protocol.authority import RunSpec, TaskReference

CARD = Gpu(name="a card", free=8, total=8)


def runspec(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "run": b"r" * 32, "name": "a run", "model": "m", "assets": [], "eos": 1, "vocabulary": 16,
        "tasks": [TaskReference(name="reverse", version=1)], "staleness": 4, "group_size": 2, "limit": 8,
        "compute_dtype": "float32", "engines": ["transformers", "llamacpp"], "sampling": "gumbel-splitmix64/1",
        "price_mode": "points",
    }  # fmt: skip
    return RunSpec(**fields | changes)


class Machine:
    """Stands in for this machine's engines: `cards`, and a rate per engine class; a class without one crashes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cards = [CARD]
        self.rates = {"transformers/float32/cuda": 100, "llamacpp/float32/cuda": 50, "llamacpp/float16/cuda": 300}
        self.timed: list[list[str]] = []
        self.builds, self.drivers, self.now = {"torch": "1"}, ["nvidia 580.1"], 1e9
        monkeypatch.setattr(engine_choice, "sights", self._sights)
        monkeypatch.setattr(engine_choice, "run_trials", self._run)
        monkeypatch.setattr(engine_choice, "builds", lambda: self.builds)
        monkeypatch.setattr(engine_choice, "driver_builds", lambda: self.drivers)
        monkeypatch.setattr(engine_choice.time, "time", lambda: self.now)
        monkeypatch.setattr(engine_choice, "system_gpus", lambda: [])
        monkeypatch.setattr("echo2.engines.registry.installed_engines", lambda: ["transformers", "llamacpp"])

    def later(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    async def _sights(self, make: object, names: Sequence[str], *, alone: bool) -> list[Sight]:
        inventory = Inventory(cpu="a CPU", gpus={"cuda": self.cards})
        return [
            Sight(engine=name, devices=("cuda", "cpu"), dtypes=("float32", "float16"), inventory=inventory)
            for name in names
        ]

    async def _run(self, make: object, ready: Sequence[Candidate], *_: object) -> list[Trial]:
        self.timed.append([one.engine_class for one in ready])
        return [self._trial(one) for one in ready]

    def _trial(self, one: Candidate) -> Trial:
        tokens = self.rates.get(one.engine_class)
        if tokens is None:
            return Trial(candidate=one, fault="it crashed")
        return Trial(candidate=one, rate=Rate(tokens=tokens, seconds=1.0, cpu_seconds=1.0, rows=2))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def choice(folder: Path, **settings: Any) -> EngineChoice:
    return EngineChoice(EngineProcess, NodeConfig(home=folder, **settings), folder)


async def chosen(folder: Path, spec: RunSpec | None = None, **settings: Any) -> str:
    one = await choice(folder, **settings).choose(folder, folder, spec or runspec())
    return one.engine_class if one is not None else "none"


async def test_the_fastest_is_kept_and_a_restart_times_nothing(machine: Machine, tmp_path: Path) -> None:
    assert await chosen(tmp_path) == "transformers/float32/cuda"
    assert await chosen(tmp_path) == "transformers/float32/cuda"
    assert len(machine.timed) == 1
    record = read_record(tmp_path)
    assert record is not None
    assert record.chosen is not None
    assert {one.fault for one in record.trials} == {"", "it crashed", "the run has no calibration of this class"}


async def test_the_time_of_a_group_at_the_limit_follows_from_the_timing_that_is_kept(
    machine: Machine, tmp_path: Path
) -> None:
    spec = runspec()
    assert choice(tmp_path).group_milliseconds(spec) is None
    await chosen(tmp_path)
    one = choice(tmp_path)
    fastest = next(trial.rate for trial in one.trials if trial.candidate == one.record.chosen)
    waves = -(-spec.group_size // fastest.rows)
    assert one.group_milliseconds(spec) == 1000 * waves * spec.limit * fastest.rows // fastest.tokens


CHANGES: dict[str, Any] = {
    "a new build": lambda machine, asked: machine.builds.update(torch="2"),
    "another card": lambda machine, asked: machine.cards.append(Gpu(name="a new card", free=1, total=9)),
    "a new driver": lambda machine, asked: machine.drivers.append("nvidia 581.0"),
    "a week": lambda machine, asked: machine.later(engine_choice.KEPT_SECONDS),
    "a class that the run opened": lambda machine, asked: asked.on_calibrated_classes(["llamacpp/float16"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_it_is_timed_again_when_builds_devices_or_classes_change(
    change: Any, machine: Machine, tmp_path: Path
) -> None:
    await chosen(tmp_path)
    asked = choice(tmp_path)
    change(machine, asked)
    one = await asked.choose(tmp_path, tmp_path, runspec())
    assert len(machine.timed) == 2
    assert one is not None
    assert one.engine == ("llamacpp" if asked.calibrated else "transformers")
    assert choice(tmp_path).calibrated == asked.calibrated


async def test_it_is_kept_for_a_week(machine: Machine, tmp_path: Path) -> None:
    await chosen(tmp_path)
    machine.later(engine_choice.KEPT_SECONDS - 1)
    await chosen(tmp_path)
    assert len(machine.timed) == 1


async def test_free_memory_that_changes_is_no_change_and_an_order_is(machine: Machine, tmp_path: Path) -> None:
    await chosen(tmp_path)
    machine.cards[0] = Gpu(name="a card", free=1, total=8)
    await chosen(tmp_path)
    assert len(machine.timed) == 1
    await choice(tmp_path).choose(tmp_path, tmp_path, runspec(), again=True)
    assert len(machine.timed) == 2


async def test_an_engine_without_the_runs_rule_of_sampling_is_no_candidate(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(registry.TRANSFORMERS, sampling=("gumbel-splitmix64/1",))
    monkeypatch.setitem(registry._ROWS, "transformers", plain)
    spec = msgspec.structs.replace(runspec(), temperature=800, sampling="gumbel-splitmix64/2")
    assert await chosen(tmp_path, spec) == "llamacpp/float32/cpu"
    assert await chosen(tmp_path) == "transformers/float32/cuda"


async def test_what_the_owner_names_is_not_timed_against_others(machine: Machine, tmp_path: Path) -> None:
    assert await chosen(tmp_path, engine="transformers") == "transformers/float32/cuda"
    assert machine.timed == [["transformers/float32/cuda", "transformers/float32/cpu"]]
    spec = runspec(engines=["transformers/float32/cuda"])
    assert await chosen(tmp_path, spec, dtype="float32") == "transformers/float32/cuda"
    assert len(machine.timed) == 1, "one candidate alone was timed"


async def test_a_run_that_takes_none_gives_none_and_no_rate_keeps_nothing(machine: Machine, tmp_path: Path) -> None:
    assert await chosen(tmp_path, runspec(engines=["vllm"])) == "none"
    machine.rates = {}
    assert await chosen(tmp_path) == "transformers/float32/cuda"
    assert not (tmp_path / FILE).exists()


async def test_a_format_that_one_engine_lacks_leaves_the_others_though_that_one_cannot_look_for_devices(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sights(make: object, names: Sequence[str], *, alone: bool) -> list[Sight]:
        inventory = Inventory(cpu="a CPU")
        return [
            Sight(
                engine="transformers", devices=("cpu",), dtypes=("float32",), inventory=inventory, fault="it crashed"
            ),
            Sight(engine="llamacpp", devices=("cpu",), dtypes=("float32", "blocks"), inventory=inventory),
        ]

    monkeypatch.setattr(engine_choice, "sights", sights)
    spec = runspec(engines=["llamacpp/blocks"])
    asked = choice(tmp_path, dtype="blocks")
    asked.on_calibrated_classes(["llamacpp/blocks"])
    one = await asked.choose(tmp_path, tmp_path, spec)
    assert one is not None
    assert one.engine_class == "llamacpp/blocks/cpu"


async def test_a_kept_file_that_is_damaged_is_timed_again(machine: Machine, tmp_path: Path) -> None:
    await chosen(tmp_path)
    (tmp_path / FILE).write_bytes(b"{")
    assert read_record(tmp_path) is None
    await chosen(tmp_path)
    assert len(machine.timed) == 2


def test_the_builds_are_those_installed_here() -> None:
    assert engine_choice.builds()["torch"]


async def test_equal_cards_compute_as_the_timed_one_does_as_long_as_the_choice_holds(
    machine: Machine, tmp_path: Path
) -> None:
    machine.cards = [CARD, CARD, Gpu(name="another card", free=9, total=9)]
    asked = choice(tmp_path)
    assert await asked.spread(runspec()) == []
    one = await asked.choose(tmp_path, tmp_path, runspec())
    assert one is not None
    assert [card.device for card in asked.cards] == ["cuda:0", "cuda:1"]
    assert await choice(tmp_path).spread(runspec()) == asked.cards
    config = spread_over(NodeConfig(home=tmp_path), asked.cards)
    assert (config.gpu, config.engine, config.dtype) == ("cuda:0,cuda:1", "transformers", "float32")
    assert len(machine.timed) == 1
    machine.later(engine_choice.KEPT_SECONDS)
    assert await choice(tmp_path).spread(runspec()) == []


async def test_classes_that_a_run_opens_later_end_what_was_kept(machine: Machine, tmp_path: Path) -> None:
    machine.cards = [CARD, CARD]
    await choice(tmp_path).choose(tmp_path, tmp_path, runspec())
    choice(tmp_path).on_calibrated_classes(["llamacpp/float16"])
    assert choice(tmp_path).calibrated == ["llamacpp/float16"]
    assert await choice(tmp_path).spread(runspec()) == []


async def test_a_choice_that_cannot_be_used_any_more_is_forgotten(machine: Machine, tmp_path: Path) -> None:
    await chosen(tmp_path)
    choice(tmp_path).forget()
    assert read_record(tmp_path) is None
    choice(tmp_path).forget()


async def test_an_engine_that_fails_later_is_passed_over_while_the_result_is_kept(
    machine: Machine, tmp_path: Path
) -> None:
    machine.rates["transformers/float32/cpu"] = 10
    assert await chosen(tmp_path) == "transformers/float32/cuda"
    following = choice(tmp_path).next_after("it died 7 times")
    assert following is not None
    assert await chosen(tmp_path) == following.engine_class == "transformers/float32/cpu"
    assert len(machine.timed) == 1
    (failed,) = [one for one in choice(tmp_path).trials if one.fault == "it died 7 times"]
    assert failed.candidate.engine_class == "transformers/float32/cuda"
    assert choice(tmp_path).next_after("it died too") is None
    machine.later(engine_choice.KEPT_SECONDS + 1)
    assert await chosen(tmp_path) == "transformers/float32/cuda"


async def test_the_only_engine_that_gave_a_rate_stays_chosen(machine: Machine, tmp_path: Path) -> None:
    machine.rates = {"transformers/float32/cuda": 100}
    fastest = await chosen(tmp_path)
    assert choice(tmp_path).next_after("it died 7 times") is None
    assert await chosen(tmp_path) == fastest


def test_one_card_leaves_the_settings_as_they_are(tmp_path: Path) -> None:
    config = NodeConfig(home=tmp_path)
    assert spread_over(config, []) is config
