"""The kit: a good task passes, and each fault is found under its own check."""

from pathlib import Path

import pytest

from echo2.tasks import check
from echo2.tasks.check import Extent
from tests.support import plugin_packages

EXTENT = Extent(prompts=20, seconds=60.0, opening=60.0)
HANGING = EXTENT._replace(seconds=3.0)
"""For tasks that hang; the others need no limit of which a busy machine could fall short."""


@pytest.fixture(autouse=True)
def _toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_packages.install(
        tmp_path, monkeypatch, {name: f"tests.support.faulty_tasks:{name}" for name in ("faulty", "turns")}
    )


@pytest.mark.slow
def test_a_good_task_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["faulty:none", "--prompts", "20", "--seconds", "60"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told == [*(f"{name}: ok" for name in check.CHECKS), "faulty:none passes"]


@pytest.mark.parametrize("words", [["--prompts", "0"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_an_extent_without_a_prompt_or_a_second_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        check.main(["faulty:none", *words])
    assert "--prompts should be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_task_without_demonstrations_passes() -> None:
    assert check.check("faulty:no demonstration", EXTENT) == []


FAULTS = {
    "no heldout": ("prompts", "the split heldout has no prompts"),
    "raises at a prompt": ("prompts", "train 7: .*KeyError"),
    "hangs at a prompt": ("bounded time", "train 7: the task gave no answer within 3 s"),
    "hash seed": ("same prompt", "under another hash seed"),
    "clock": ("same prompt", "in another process"),
    "order of calls": ("same prompt", "in another process"),
    "process": ("same prompt", "in another process"),
    "both splits": ("separate splits", "heldout 3 is train 3"),
    "chance": ("same score", "a second time in one process"),
    "load": ("same score", "0 and 0.1 beside busy processes: no reward may depend on a machine's load"),
    "not a number": ("finite reward", "nan is no finite float32"),
    "raises": ("finite reward", "score raised ValueError"),
    "endless": ("ends", "does not end"),
    "refuses its own": ("fair rewards", "3 of 20 own answers do not succeed: at train 0 '0' has the reward"),
    "pays anything": ("fair rewards", "a word earns 1 on average at 5 prompts, its own answers 1"),
    "pays any number": ("fair rewards", "another prompt's answer earns 1 on average at 20 prompts, its own answers 1"),
    "one answer": ("fair rewards", "the commonest of its own answers earns 1 on average at 20 prompts"),
    "regex": ("hostile answers", "1 MB of one letter: the task gave no answer within 3 s"),
    "dies": ("hostile answers", "50,000 open brackets: the task's process ended with 7"),
}


@pytest.mark.parametrize(("fault", "told_by"), FAULTS.items(), ids=FAULTS)
@pytest.mark.slow_but("hangs at a prompt", "no heldout", "one answer")
def test_each_fault_is_told_by_its_check(fault: str, told_by: tuple[str, str]) -> None:
    name, sentence = told_by
    extent = HANGING if "no answer" in sentence else EXTENT
    faults = [one for one in check.check(f"faulty:{fault}", extent) if one.check == name]
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError("; ".join(one.sentence for one in faults))


@pytest.mark.slow
def test_a_good_task_of_several_turns_passes() -> None:
    assert check.check("turns:none", EXTENT) == []


LATE_FAULTS = {
    "pays anything": ("fair rewards", "no answer earns 1 on average at 5 prompts, its own answers 1"),
    "hash seed late": ("same score", "other replies in another process under another hash seed"),
    "endless late": ("ends", "answered with a word: the episode does not end"),
    "raises late": ("hostile answers", "50,000 open brackets in turn 2: a turn raised RecursionError"),
    "dies late": ("hostile answers", "50,000 open brackets in turn 2: the task's process ended with 7"),
}


@pytest.mark.parametrize(("fault", "told_by"), LATE_FAULTS.items(), ids=LATE_FAULTS)
@pytest.mark.slow_but("hash seed late")
def test_a_fault_of_a_later_turn_is_told_by_its_check(fault: str, told_by: tuple[str, str]) -> None:
    name, sentence = told_by
    faults = [one for one in check.check(f"turns:{fault}", EXTENT) if one.check == name]
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError("; ".join(one.sentence for one in faults))


@pytest.mark.slow
def test_a_report_says_what_was_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["faulty:not a number", "--prompts", "20"]) == 1
    told = capsys.readouterr().out
    assert "finite reward: fails" in told
    assert "hostile answers: not tried" in told
    assert check.main(["nothing"]) == 1
    assert capsys.readouterr().out.startswith("opens: fails\n  there is no task nothing")
