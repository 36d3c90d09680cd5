"""Problems of the operator's own: what is read, how it is split, and what is refused with file and row."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from echo2.tasks.math.problem_files import LONGEST_ROW, DataFault, final_answer, read, version_of


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def sums(first: int, last: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(first, last)]


def test_the_hash_of_a_problem_decides_its_split_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    splits = read(jsonl(tmp_path / "sums.jsonl", sums(0, 400)))
    assert len(splits["train"]) + len(splits["heldout"]) == 400
    assert 20 <= len(splits["heldout"]) <= 65
    again = read(jsonl(tmp_path / "backwards.jsonl", sums(0, 400)[::-1]))
    assert [one.question for one in again["heldout"]] == [one.question for one in splits["heldout"]]
    assert version_of(again) == version_of(splits)
    other = read(jsonl(tmp_path / "more.jsonl", sums(0, 401)))
    assert version_of(other) != version_of(splits)


def test_a_file_named_test_is_held_out_in_a_folder(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 30))
    jsonl(tmp_path / "test.jsonl", sums(30, 35))
    (tmp_path / "README.txt").write_text("not read")
    splits = read(tmp_path)
    assert (len(splits["train"]), len(splits["heldout"])) == (30, 5)


def test_parquet_files_are_read_as_jsonl_ones(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra math")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"question": row["question"], "answer": str(row["answer"])} for row in sums(0, 200)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sums.parquet")
    assert version_of(read(tmp_path / "sums.parquet")) == version_of(read(jsonl(tmp_path / "sums.jsonl", rows)))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataFault, match=r"bad\.parquet is no Parquet file"):
        read(tmp_path / "bad.parquet")
    parts = [None, *pyarrow.array([b"\xff\xfe"]).buffers()[1:]]
    no_text = pyarrow.Array.from_buffers(pyarrow.string(), 1, parts)
    beyond = pyarrow.array([2**40], pyarrow.timestamp("s"))
    for name, answer in (("no text", no_text), ("beyond all dates", beyond)):
        table = pyarrow.Table.from_arrays([pyarrow.array(["1 + 1"]), answer], names=["problem", "answer"])
        parquet.write_table(table, tmp_path / f"{name}.parquet")
        with pytest.raises(DataFault, match=rf"{name}\.parquet is no Parquet file, or a damaged one"):
            read(tmp_path / f"{name}.parquet")


@pytest.mark.parametrize(
    ("rows", "says"),
    {
        "nothing": ([], "has no problem in the split train"),
        "a list": ([[1, 2]], "row 1 is no object"),
        "no answer": ([{"question": "a"}], "row 1 has no text of 1 to 100000 characters under answer"),
        "half a surrogate pair": ([{"question": "\ud800 + 1?", "answer": "1"}], "row 1 has half of a surrogate pair"),
        "a blank problem": ([{"question": " ", "answer": "1"}], "row 1 has no text"),
        "no finite number": ([{"question": "a", "answer": float("inf")}], "row 1 has no text"),
        "two answers": (
            [{"question": "What is 1?", "answer": "1"}, {"question": "what  is 1?", "answer": "2"}],
            "row 1 and .* row 2 have one problem with two answers",
        ),
    }.values(),
    ids=[
        "nothing",
        "a list",
        "no answer",
        "half a surrogate pair",
        "a blank problem",
        "no finite number",
        "two answers",
    ],
)
def test_rows_that_cannot_be_used_are_refused_by_their_number(tmp_path: Path, rows: list[Any], says: str) -> None:
    with pytest.raises(DataFault, match=says):
        read(jsonl(tmp_path / "rows.jsonl", rows))


def test_a_problem_in_both_splits_is_refused(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", sums(0, 10))
    jsonl(tmp_path / "heldout.jsonl", sums(9, 12))
    with pytest.raises(DataFault, match="are one problem in both splits"):
        read(tmp_path)


def test_damaged_rows_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").write_text('{"question": "a", "answer": "1"}\n{"question": ')
    with pytest.raises(DataFault, match=r"cut\.jsonl row 2 is no JSON"):
        read(tmp_path / "cut.jsonl")
    with pytest.raises(DataFault, match=r"there is nothing at .*nowhere\.jsonl: correct the path"):
        read(tmp_path / "nowhere.jsonl")
    (tmp_path / "rows.csv").touch()
    with pytest.raises(DataFault, match="is no folder, and no file that ends with"):
        read(tmp_path / "rows.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataFault, match="has no file that ends with"):
        read(tmp_path / "empty")


def test_a_file_that_is_one_endless_row_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    with (tmp_path / "huge.jsonl").open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(DataFault, match=rf"huge\.jsonl row 1 has more than {LONGEST_ROW} bytes"):
        read(tmp_path / "huge.jsonl")


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    jsonl(tmp_path / "rows.jsonl", sums(0, 10))
    os.mkfifo(tmp_path / "other.jsonl")
    with pytest.raises(DataFault, match=r"other\.jsonl is no file"):
        read(tmp_path)


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
