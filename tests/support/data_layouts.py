"""The layouts of data sets that `math:PATH` reads, as tables of docs/reference/math-data.md, made by reading each.

python -m tests.support.data_layouts     writes the tables into docs/reference/math-data.md
"""

import csv
import gzip
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from echo2.tasks.math import problem_files
from echo2.tasks.math.data_files import DataFault, files_of, rows_of
from echo2.tasks.math.row_fields import RowFault, answers_of, parse_argument, problem_of
from tests.support.paths import ROOT

PAGE: Final = ROOT / "docs/reference/math-data.md"
BEGIN, END = "<!-- data layouts -->", "<!-- end of data layouts -->"
SHARED: Final = 2
"""Number of the problem that stands in every file of a layout with several."""
Row = Mapping[str, Any]


def rows_from(first: int, number: int) -> list[Row]:
    """Return rows with problems of their own, and the shared one."""
    numbers = [SHARED, *(place for place in range(first, first + number))]
    return [{"question": f"Compute {place} + {place}.", "answer": str(2 * place)} for place in numbers]


def _jsonl(rows: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    written = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), written)
    return written.getvalue()


WRITERS: Final[Mapping[str, Callable[[Sequence[Row]], bytes]]] = {
    ".jsonl": _jsonl,
    ".jsonl.gz": lambda rows: gzip.compress(_jsonl(rows)),
    ".json": lambda rows: json.dumps(list(rows)).encode(),
    ".csv": _csv,
    ".csv.gz": lambda rows: gzip.compress(_csv(rows)),
    ".parquet": _parquet,
}
FOLDERS: Final[Sequence[Sequence[str]]] = (
    ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
    ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/validation-00000-of-00001.parquet",
     "data/test-00000-of-00001.parquet"),
    ("train.jsonl", "test.jsonl"),
    ("train.jsonl", "dev.jsonl", "test.jsonl"),
    ("train/a.jsonl", "train/b.jsonl", "eval/a.jsonl"),
    ("main/train.jsonl.gz", "main/test.jsonl.gz"),
    ("training.csv", "valid.csv.gz"),
    ("train.json", "heldout.jsonl", "dataset_info.json"),
    ("train_en.jsonl", "val_en.jsonl"),
    ("algebra.jsonl", "geometry.jsonl"),
    ("train.parquet",),
    ("train.jsonl", "more.jsonl"),
    ("train/test.jsonl",),
    ("default-00000-of-00001.parquet",),
    ("notes.txt",),
)  # fmt: skip
"""Files of a folder."""


class FieldRow(NamedTuple):
    """A kind of row. `source`: who writes it so. `query`: the mapping that it needs."""

    source: str
    row: Row
    query: str = ""


USER: Final = {"role": "user", "content": "Compute 6 x 7."}
HUMAN: Final = {"from": "human", "value": "Compute 6 x 7."}
FIELD_ROWS: Final = (
    FieldRow("GSM8K", {"question": "Compute 6 x 7.", "answer": "6 x 7 is 42.\n#### 42"}),
    FieldRow("MATH", {"problem": "Compute 6 x 7.", "level": "Level 1", "solution": "It is \\boxed{42}."}),
    FieldRow("AIME", {"ID": "2024-I-1", "Problem": "Compute 6 x 7.", "Answer": 42}),
    FieldRow(
        "verl",
        {"data_source": "openai/gsm8k", "prompt": [USER], "reward_model": {"style": "rule", "ground_truth": "42"}},
    ),
    FieldRow("TRL", {"prompt": [{"role": "system", "content": "Think."}, USER], "solution": "$\\boxed{42}$"}),
    FieldRow("slime", {"prompt": "Compute 6 x 7.", "label": "42"}),
    FieldRow("OpenRLHF", {"input": "Compute 6 x 7.", "label": 42}),
    FieldRow("open-instruct", {"messages": [USER], "ground_truth": "42", "dataset": "math"}),
    FieldRow("DAPO, Skywork-OR1", {"prompt": [USER], "reward_model": {"ground_truth": '["42"]'}}),
    FieldRow("Big-Math", {"problem": "Compute 6 x 7.", "answer": "42", "llama8b_solve_rate": 0.9}),
    FieldRow("several answers", {"problem": "Compute 6 x 7.", "answers": ["42", "forty-two"]}),
    FieldRow("ShareGPT", {"conversations": [HUMAN, {"from": "gpt", "value": "42"}], "target": "42"}),
    FieldRow("messages in a text", {"prompt": json.dumps([USER]), "reward_model": json.dumps({"ground_truth": "42"})},
             "problem=prompt[-1].content&answer=reward_model.ground_truth"),
    FieldRow("fields of your own", {"task": {"text": "Compute 6 x 7."}, "gold": "42"},
             "problem=task.text&answer=gold&ask=none"),
    FieldRow("no answer", {"problem": "Compute 6 x 7.", "level": 3}),
    FieldRow("a blank problem", {"question": " ", "answer": "42"}),
)  # fmt: skip


def needs_pyarrow(files: Sequence[str]) -> bool:
    return any(name.endswith(".parquet") for name in files)


def folder_row(files: Sequence[str]) -> str:
    """Write a folder, read it, and return its row of the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number, name in enumerate(files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            ending = next((one for one in WRITERS if name.endswith(one)), "")
            rows = rows_from(100 * (number + 1), 20 if len(files) == 1 else 9)
            known = ending and name != "dataset_info.json"
            (folder / name).write_bytes(WRITERS[ending](rows) if known else b"{}")
        try:
            data = problem_files.read(*parse_argument(str(folder)))
        except DataFault as fault:
            said = str(fault).replace(f"{folder}", "the folder")
            return _cells(_code(files), "", "", f"refused: {said}")
        counts = [str(len(data.splits[split])) for split in ("train", "heldout")]
        return _cells(_code(files), *counts, "; ".join(data.remarks))


def field_row(kind: FieldRow) -> str:
    """Write a row of a kind, read it, and return its row of the table."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.jsonl"
        file.write_bytes(_jsonl([kind.row]))
        _, fields = parse_argument(f"{file}?{kind.query}" if kind.query else str(file))
        ((_, row),) = rows_of(*files_of(file), fields.columns())
    asked = f"`{kind.query}`" if kind.query else ""
    try:
        posed, answers = problem_of(row, fields), answers_of(row, fields)
    except RowFault as fault:
        return _cells(kind.source, _json_text(kind.row), asked, f"left out: {fault}", "")
    told = posed if isinstance(posed, str) else ", ".join(f"{one['role']}: {one['content']}" for one in posed)
    return _cells(kind.source, _json_text(kind.row), asked, told, " or ".join(answers))


def _json_text(row: Row) -> str:
    return f"`{json.dumps(row, ensure_ascii=False)}`"


def _code(files: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in files)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def tables() -> str:
    """Return both tables in Markdown."""
    return "\n".join([
        "| Files of a folder | Trained on | Held out | Report |", "|---|---|---|---|",
        *map(folder_row, FOLDERS), "",
        "| Rows of | A row | Mapping | Posed | Right |", "|---|---|---|---|---|", *map(field_row, FIELD_ROWS),
    ])  # fmt: skip


def shown_rows() -> set[str]:
    """Return the lines of the page between the marks."""
    return set(PAGE.read_text().partition(BEGIN)[2].partition(END)[0].splitlines())


def main() -> None:
    """Write the tables into the page."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} lacks the lines {BEGIN} and {END}")
    PAGE.write_text(f"{before}{begin}\n\n{tables()}\n\n{end}{after}")


if __name__ == "__main__":
    main()
