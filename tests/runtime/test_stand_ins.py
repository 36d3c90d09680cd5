"""Modules of a checkout in the place of parts of a daemon."""

import sys

import pytest

from echo2.coordinator.leases.lease_window import LeaseWindow
from echo2.runtime.errors import LocalFault
from echo2.runtime.stand_ins import VARIABLE, or_stand_in, process_command, stand_in


def test_without_the_variable_every_part_is_itself() -> None:
    assert stand_in("learner") is None
    assert process_command("learner", "echo2.coordinator.learner")[1:] == ["-P", "-m", "echo2.coordinator.learner"]
    assert or_stand_in("window", LeaseWindow) is LeaseWindow


def test_a_named_module_takes_the_place_of_its_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "learner=benchmarks.paced.paced_learner window=benchmarks.paced.room_window")
    assert process_command("learner", "own") == [
        sys.executable, "-P", "-m", "echo2.runtime.checkout", "benchmarks.paced.paced_learner",
    ]  # fmt: skip
    assert process_command("engine", "own")[-1] == "own"
    window = or_stand_in("window", LeaseWindow)(4, 8)
    window.last.windows.append(1.0)
    assert window.batches == 5.0, "as much as S allows, whatever the draws show"


@pytest.mark.parametrize("words", ["lerner=benchmarks.paced.paced_learner", "learner", "learner="])
def test_a_part_that_is_not_there_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv(VARIABLE, words)
    with pytest.raises(
        LocalFault,
        match=r"write PART=MODULE, with a part of learner, engine, scorer, window, conn",
    ):
        stand_in("learner")
