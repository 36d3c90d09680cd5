"""Problems of the operator's own: how they are split, and what is left out and said."""

# ruff: noqa: RUF001  (signs that look like others are what this is about)
import json
from pathlib import Path
from typing import Any

import pytest

from echo2.tasks.math.data_files import DataFault
from echo2.tasks.math.problem_files import Data, read, version_of
from echo2.tasks.math.row_fields import parse_argument

Row = dict[str, Any]


def jsonl(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def sums(first: int, last: int) -> list[Row]:
    return [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(first, last)]


def data_of(path: Path, query: str = "") -> Data:
    return read(*parse_argument(f"{path}{query}"))


def sizes(data: Data) -> tuple[int, int]:
    return len(data.splits["train"]), len(data.splits["heldout"])


def asked(data: Data) -> set[str]:
    return {str(problem.posed) for problems in data.splits.values() for problem in problems}


def test_the_hash_of_a_problem_decides_its_split_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    data = data_of(jsonl(tmp_path / "sums.jsonl", sums(0, 400)))
    train, heldout = sizes(data)
    assert train + heldout == 400
    assert 20 <= heldout <= 65
    assert data.remarks == [
        "1 file (sums.jsonl) without a file of validation or test: one problem in ten is held out by its hash, "
        f"{heldout} of 400"
    ]
    again = data_of(jsonl(tmp_path / "backwards.jsonl", sums(0, 400)[::-1]))
    assert [one.posed for one in again.splits["heldout"]] == [one.posed for one in data.splits["heldout"]]
    assert version_of(again, None) == version_of(data, None)
    assert version_of(data, "") != version_of(data, None)
    other = data_of(jsonl(tmp_path / "more.jsonl", sums(0, 401)))
    assert version_of(other, None) != version_of(data, None)


def test_the_names_of_a_hub_hold_out_the_test_where_nothing_is_for_validation(tmp_path: Path) -> None:
    jsonl(tmp_path / "data" / "train-00000-of-00002.jsonl", sums(0, 15))
    jsonl(tmp_path / "data" / "train-00001-of-00002.jsonl", sums(15, 30))
    jsonl(tmp_path / "data" / "test-00000-of-00001.jsonl", sums(30, 35))
    data = data_of(tmp_path)
    assert sizes(data) == (30, 5)
    assert data.remarks == [
        "train: 30 problems of 2 files (data/train-00000-of-00002.jsonl, data/train-00001-of-00002.jsonl)",
        "heldout: 5 problems of 1 file (data/test-00000-of-00001.jsonl)",
    ]


def test_a_test_beside_a_validation_is_never_read(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 30))
    jsonl(tmp_path / "validation.jsonl", sums(30, 34))
    (tmp_path / "test.jsonl").write_text("not JSON")
    data = data_of(tmp_path)
    assert sizes(data) == (30, 4)
    assert "not read, for it is a test: 1 file (test.jsonl)" in data.remarks


def test_problems_in_both_splits_leave_training_and_conflicting_ones_leave_both(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [*sums(0, 200), {"question": "what  is ２００ + 1?", "answer": 201}, *sums(0, 3)])
    jsonl(tmp_path / "heldout.jsonl", [*sums(199, 220), {"question": "What is 5 + 1?", "answer": 7}])
    data = data_of(tmp_path)
    assert sizes(data) == (198, 21)
    assert not {str(one.posed) for one in data.splits["train"]} & {str(one.posed) for one in data.splits["heldout"]}
    assert "What is 5 + 1?" not in asked(data)
    assert data.remarks[2:] == [
        "3 rows repeat a problem with its answer and count once",
        "2 problems are in both splits, and not trained on",
        "1 row or problem is left out: heldout.jsonl row 22 and train.jsonl row 6 have one problem with two "
        "answers, '7' and '6'",
    ]


def test_rows_that_cannot_be_used_are_left_out_up_to_a_share(tmp_path: Path) -> None:
    rows = jsonl(tmp_path / "rows.jsonl", [*sums(0, 95), *({"question": f"{number}?"} for number in range(5))])
    with pytest.raises(
        DataFault, match=r"5 of 100 rows of .* cannot be used, .* 0\.01 .*rows\.jsonl row 96, .*: it has no"
    ):
        data_of(rows)
    data = data_of(rows, "?left_out=0.05")
    assert sum(sizes(data)) == 95
    assert data.remarks[-1].startswith("5 rows or problems are left out: rows.jsonl row 96, rows.jsonl row 97, ")


def test_of_many_reasons_the_first_are_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", sums(0, 100) + [{f"key{number}": "x"} for number in range(1000)])
    (*_, said) = data_of(path, "?left_out=1").remarks
    assert "1000 rows or problems are left out" in said
    assert said.endswith("990 more rows for other reasons")
    assert len(said) < 3000


def test_rows_of_another_kind_are_counted(tmp_path: Path) -> None:
    rows = [{**row, "kind": "sum"} for row in sums(0, 90)] + [{"kind": "essay"}] * 10
    data = data_of(jsonl(tmp_path / "rows.jsonl", rows), "?where=kind=sum")
    assert sum(sizes(data)) == 90
    assert data.remarks[-1] == "10 rows are of another kind (where)"


@pytest.mark.parametrize("rows", [[], sums(0, 3)], ids=["nothing", "too few to hold one out"])
def test_a_split_without_problems_is_refused(tmp_path: Path, rows: list[Row]) -> None:
    with pytest.raises(DataFault, match="has no problem in the split"):
        data_of(jsonl(tmp_path / "rows.jsonl", rows))


def test_a_conflict_in_a_small_file_refuses_it(tmp_path: Path) -> None:
    rows = [{"question": "What is 1?", "answer": "1"}, {"question": "what  is 1?", "answer": "2"}]
    with pytest.raises(DataFault, match=r"row 1 and .* row 2 have one problem with two answers"):
        data_of(jsonl(tmp_path / "rows.jsonl", rows))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("24", "24.0"),
        ("5√3", r"5\sqrt{3}"),
        (r"\frac{1}{2}", "1/2"),
        (r"\boxed{7}", "$7$"),
        ("90°", "90"),
        ("1" * 5000, "1" * 5000 + "."),
    ],
)
def test_answers_in_two_notations_are_no_conflict(tmp_path: Path, one: str, other: str) -> None:
    rows = [*sums(0, 97), {"question": "What is it?", "answer": one}, {"question": "what is it?", "answer": other}]
    data = data_of(jsonl(tmp_path / "rows.jsonl", rows))
    assert (sum(sizes(data)), data.remarks[-1]) == (98, "1 row repeats a problem with its answer and counts once")


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("46*sqrt(3)", "46√3"), (r"\frac{x}{2}", "0.5x"), ("1/3", "0.333333")])
def test_answers_that_are_rewarded_for_each_other_are_no_conflict(tmp_path: Path, one: str, other: str) -> None:
    pytest.importorskip("math_verify", reason="needs the extra math")
    test_answers_in_two_notations_are_no_conflict(tmp_path, one, other)
    rows = [*sums(0, 99), {"question": "What is it?", "answer": one}, {"question": "what is it?", "answer": "47√3"}]
    assert "have one problem with two answers" in data_of(jsonl(tmp_path / "other.jsonl", rows)).remarks[-1]


def test_a_refusal_says_how_many_conflicts_there_are_and_how_to_allow_them(tmp_path: Path) -> None:
    rows = [*sums(0, 40), *({**row, "answer": "-1"} for row in sums(0, 13))]
    with pytest.raises(DataFault, match=r"allow it by left_out=0\.25 in the query .* and 3 more such problems$"):
        data_of(jsonl(tmp_path / "rows.jsonl", rows))
