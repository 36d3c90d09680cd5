"""`run.task` names one task, or several by weight."""

from pathlib import Path

import pytest

from echo2.coordinator.run.task_mix import WeightedTask, join_mix, only, parse_mix, text_of
from echo2.runtime.settings import SettingsFault


def test_a_single_task_is_a_mix_of_one() -> None:
    assert parse_mix("gym:chain_sum=3,gsm_symbolic") == [WeightedTask("gym:chain_sum=3,gsm_symbolic", 1)]
    assert parse_mix("math:/data/my problems.jsonl") == [WeightedTask("math:/data/my problems.jsonl", 1)]


def test_a_number_before_a_task_is_its_weight() -> None:
    mix = parse_mix("3 add + gym:chain_sum=2 + 10  math:/a b.jsonl")
    assert mix == [("add", 3), ("gym:chain_sum=2", 1), ("math:/a b.jsonl", 10)]
    assert text_of(mix) == "3 add + gym:chain_sum=2 + 10 math:/a b.jsonl"
    assert parse_mix(text_of(mix)) == mix
    assert parse_mix(join_mix(["3 add", "reverse"])) == [("add", 3), ("reverse", 1)]


def test_a_name_that_contains_the_separator_stands_in_quotes() -> None:
    mix = parse_mix('2 "math:/data/a + b.jsonl" + add')
    assert mix == [("math:/data/a + b.jsonl", 2), ("add", 1)]
    assert text_of(mix) == '2 "math:/data/a + b.jsonl" + add'
    assert parse_mix('"math:/data/a + b.jsonl"') == [("math:/data/a + b.jsonl", 1)]


def test_a_path_that_exists_needs_no_quotes_in_an_option(tmp_path: Path) -> None:
    name = f"math:{tmp_path}/a + b.jsonl"
    (tmp_path / "a + b.jsonl").touch()
    assert parse_mix(join_mix([name, f"3 {name}?ask=none", "add"])) == [(name, 1), (f"{name}?ask=none", 3), ("add", 1)]
    assert only(name) == name
    assert only(f"2 {name}") == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 add + reverse", "run.task gives add the weight 0: write a whole number from 1 to 1000, or leave it out"),
        ("-2 add + reverse", "gives add the weight -2"),
        ("nan add + reverse", "gives add the weight nan"),
        ("inf add + reverse", "gives add the weight inf"),
        ("1.5 add + reverse", "gives add the weight 1.5"),
        ("1001 add + reverse", "gives add the weight 1001"),
        ("add + 2 reverse + 3 add", "run.task names add 2 times: name it once, with the sum of the weights"),
        ("math:/a + b.jsonl", "'b.jsonl' is no task: put a name that contains ' + ' in double quotes"),
        ("add + ", "a task is missing"),
        ("add +  + reverse", "a task is missing"),
        (" + ".join(f"t{number}" for number in range(65)), "names 65 tasks, the most is 64"),
        ("add + math:/a\x1b[2J", "a name with a character that cannot be printed: 'math:/a\\x1b[2J'"),
        ("add + " + "x" * 201, "a name of 201 characters, the most is 200"),
    ],
)
def test_a_bad_mix_is_refused_with_a_sentence(text: str, told: str) -> None:
    with pytest.raises(SettingsFault) as fault:
        parse_mix(text)
    assert told in str(fault.value)
