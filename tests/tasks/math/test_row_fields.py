"""Fields of a row: as the usual data sets name them, as the operator says, and what is no problem or answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from echo2.tasks.math.data_files import DataFault
from echo2.tasks.math.row_fields import Fields, RowFault, answers_of, field_of, final_answer, parse_argument, problem_of

USUAL = parse_argument("/d.jsonl")[1]
ASKED = [{"role": "user", "content": "2 + 3?"}]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": ASKED,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "train", "index": 0},
}


def read_row(row: Any) -> tuple[Any, ...]:
    return problem_of(row, USUAL), answers_of(row, USUAL)


def fields(query: str) -> Fields:
    return parse_argument(f"/d.jsonl?{query}")[1]


@pytest.mark.parametrize(
    ("row", "problem", "answers"),
    {
        "GSM8K": ({"question": "2 + 3?", "answer": "2 + 3 = 5\n#### 5"}, "2 + 3?", ("5",)),
        "MATH-500": ({"problem": "2 + 3?", "solution": "it is \\boxed{5}", "answer": "5"}, "2 + 3?", ("5",)),
        "MATH": ({"problem": "2 + 3?", "level": "Level 1", "solution": "so \\boxed{5}."}, "2 + 3?", ("5",)),
        "AIME": ({"ID": "I-1", "Problem": "2 + 3?", "Solution": "...", "Answer": 5}, "2 + 3?", ("5",)),
        "verl": (VERL, tuple(ASKED), ("5",)),
        "TRL": ({"prompt": ASKED, "ground_truth": "5"}, tuple(ASKED), ("5",)),
        "slime": ({"prompt": "2 + 3?", "label": "5"}, "2 + 3?", ("5",)),
        "OpenRLHF": ({"input": "2 + 3?", "label": "5"}, "2 + 3?", ("5",)),
        "open-instruct": (
            {"messages": [*ASKED, {"role": "assistant", "content": "5"}], "ground_truth": "5", "dataset": "gsm8k"},
            tuple(ASKED),
            ("5",),
        ),
        "ShareGPT": (
            {"conversations": [{"from": "human", "value": "2 + 3?"}, {"from": "gpt", "value": "5"}], "answer": "5"},
            tuple(ASKED),
            ("5",),
        ),
        "OpenMathReasoning": ({"problem": "2 + 3?", "expected_answer": "5"}, "2 + 3?", ("5",)),
        "Skywork": ({"prompt": ASKED, "reward_model": {"ground_truth": '["5", "5.0"]'}}, tuple(ASKED), ("5", "5.0")),
        "several answers": ({"question": "x^2 = 4?", "answer": ["2", -2, "2"]}, "x^2 = 4?", ("2", "-2")),
        "parts": (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "2 + 3?"}]}], "answer": 5},
            tuple(ASKED),
            ("5",),
        ),
    }.values(),
)
def test_rows_of_usual_data_sets_are_read_as_they_are(
    row: dict[str, Any], problem: str | tuple[Any, ...], answers: tuple[str, ...]
) -> None:
    assert problem_of(row, USUAL) == problem
    assert answers_of(row, USUAL) == answers
    assert {key.lower() for key in row} & USUAL.columns()


def test_the_operator_names_nested_fields_rows_and_the_request() -> None:
    named = fields(
        "problem=prompt[-1].content&answer=reward_model.ground_truth&where=data_source=openai/gsm8k&ask=none"
        "&left_out=0.2"
    )
    assert problem_of(VERL, named) == "2 + 3?"
    assert answers_of(VERL, named) == ("5",)
    assert named.columns() == {"prompt", "reward_model", "data_source"}
    assert named.takes(VERL)
    assert not named.takes({**VERL, "data_source": "other"})
    assert (named.ask, named.left_out) == ("", 0.2)
    assert fields("ask=Answer%20in%20a%20box%3F%26").ask == "Answer in a box?&"
    assert answers_of({"info": json.dumps({"truth": {"value": 5}}), "problem": "a"}, fields("answer=info.truth.value"))
    assert problem_of([{"from": "human", "value": "2 + 3?"}], fields("problem=[0].value")) == "2 + 3?"


def test_a_file_whose_name_holds_a_question_mark_is_taken_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "why?answer=1.jsonl"
    assert parse_argument(str(path))[0] == tmp_path / "why"
    path.touch()
    assert parse_argument(str(path)) == (path, USUAL)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("anwser=a", "'anwser' is no key of a data set's fields: did you mean answer?"),
        ("answer", "'answer' in .* says nothing: write KEY=VALUE"),
        ("answer=", "says nothing"),
        ("answer=a[x]", "'a\\[x\\]' is no field"),
        ("answer=.a", "is no field"),
        ("where=a", "where=a names no text: write where=FIELD=TEXT"),
        ("left_out=2", "left_out=2 is no share from 0 to 1"),
        ("left_out=some", "left_out=some is no share"),
    ],
)
def test_a_query_that_says_nothing_is_refused(query: str, says: str) -> None:
    with pytest.raises(DataFault, match=says):
        fields(query)


@pytest.mark.parametrize(
    ("row", "says"),
    {
        "a list": ([1, 2], "it has no problem under problem, .*; it has no keys: it is \\[1, 2\\]"),
        "no problem": ({"text": "a", "answer": "1"}, "it has no problem under .*; it has text, answer"),
        "no answer": ({"question": "a"}, "it has no answer under answer, .*; it has question"),
        "half a surrogate pair": ({"question": "\ud800 + 1?", "answer": "1"}, "half of a surrogate pair"),
        "a blank problem": ({"question": " ", "answer": "1"}, "its problem is blank"),
        "no finite number": ({"question": "a", "answer": float("inf")}, "its answer is no text and no finite number"),
        "no answers": ({"question": "a", "answer": []}, "it has an empty list of answers"),
        "a truth": ({"question": "a", "answer": True}, "its answer is no text and no finite number"),
        "too long": ({"question": "a" * 100_001, "answer": "1"}, "its problem has 100001 characters"),
        "texts": ({"prompt": ["a"], "answer": "1"}, "its problem is a list of something else than messages"),
        "nobody asks": (
            {"prompt": [{"role": "system", "content": "Be kind."}], "answer": "1"},
            "its messages have none of the user",
        ),
        "a picture": (
            {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"},
            "a message of its problem has something else than text",
        ),
    }.values(),
)
def test_a_row_that_cannot_be_used_says_why(row: Any, says: str) -> None:
    with pytest.raises(RowFault, match=says):
        read_row(row)


def test_a_whole_number_beyond_floating_point_is_an_answer() -> None:
    assert read_row({"problem": "10^400?", "answer": 10**400})[1] == (str(10**400),)


def test_a_field_has_names_and_positions() -> None:
    assert field_of("a.b[0][-1].c").steps == ("a", "b", 0, -1, "c")
    assert field_of("a").value({"a": 1}) == 1
    assert field_of("a.b").value({"a": 1}) is None
    assert field_of("a[3]").value({"a": [1]}) is None


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("6 * 7 = 42\n#### 42", "42"),
        (r"so \boxed{1} and then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"an open \boxed{1", r"an open \boxed{1"),
        ("42", "42"),
    ],
)
def test_the_answer_is_the_end_of_a_solution(solution: str, answer: str) -> None:
    assert final_answer(solution) == answer
