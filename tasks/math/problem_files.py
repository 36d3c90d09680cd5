"""Problems and answers from JSONL, Parquet or a folder of such files.

Rules
1. A row is one problem: a text under the first key of `PROBLEM` that it has, and an answer under the first of `ANSWER`.
   An answer may be a finite number; in a solution in the form of GSM8K it is the text after "####", and in one with
   \\boxed{} it is the last box.
2. A folder's files are read in the order of their names; files with another ending are left out. A file named `heldout`
   or `test` (before its ending) is held out, all others train, where a folder has such a file. Elsewhere the hash of
   the problem decides: one in ten is held out.
3. The same problem with the same answer counts once. With another answer, or in a file that is held out and in one that
   is not, it is refused: the operator decides which is right. Blanks, letter case and Unicode's compatible forms make
   no difference between problems.
"""

import hashlib
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from echo2.tasks.task import Split

PROBLEM: Final = ("problem", "question", "prompt", "input")
ANSWER: Final = ("answer", "final_answer", "solution", "target", "output")
HELDOUT_FILES: Final = ("heldout", "test")
MOST_PROBLEM_CHARACTERS: Final = 100_000
"""Most characters of a problem or an answer."""
LONGEST_ROW: Final = 64 * MOST_PROBLEM_CHARACTERS
"""Most bytes of a row of JSONL, which may have other keys too."""


class DataFault(ValueError):
    """The data cannot be used; the message names file and row, and says why."""


class Problem(NamedTuple):
    """A problem with its answer. `place`: file and row, for people. `split`: None: its hash decides."""

    question: str
    answer: str
    place: str
    split: Split | None


def read(path: Path) -> dict[Split, list[Problem]]:
    """Return the problems of both splits, each in an order that depends on the problems alone. Raises `DataFault`."""
    kept: dict[bytes, Problem] = {}
    for problem in _rows(path):
        key = digest(problem.question)
        before = kept.setdefault(key, problem)
        if before.answer != problem.answer:
            raise DataFault(
                f"{before.place} and {problem.place} have one problem with two answers, {before.answer!r:.60} and "
                f"{problem.answer!r:.60}: remove one"
            )
        if before.split != problem.split:
            raise DataFault(f"{before.place} and {problem.place} are one problem in both splits: remove one")
    splits: dict[Split, list[Problem]] = {"train": [], "heldout": []}
    for key, problem in sorted(kept.items()):
        splits[problem.split or ("heldout" if key[0] % 10 == 0 else "train")].append(problem)
    for split, problems in splits.items():
        if not problems:
            raise DataFault(
                f"{path} has no problem in the split {split} (problems in all: {len(kept)}): add some. In a folder the "
                "files named heldout or test are held out; elsewhere the hash of a problem holds out one in ten"
            )
    return splits


def digest(question: str) -> bytes:
    """Return the hash of a problem (rule 3)."""
    plain = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.blake2b(plain.encode(errors="replace"), key=b"echo2/math", digest_size=16).digest()


def version_of(splits: dict[Split, list[Problem]]) -> int:
    """Return a version that tells data apart: 31 bits of the hash of all problems and answers, at least 1."""
    state = hashlib.blake2b(key=b"echo2/math", digest_size=4)
    for split, problems in splits.items():
        for problem in problems:
            state.update(json.dumps([split, problem.question, problem.answer]).encode())
    return max(1, int.from_bytes(state.digest(), "little") >> 1)


def _rows(path: Path) -> Iterator[Problem]:
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.suffix in _READERS)
        if not files:
            raise DataFault(f"{path} has no file that ends with {' or '.join(_READERS)}")
    elif path.suffix in _READERS and path.is_file():
        files = [path]
    elif not path.exists():
        raise DataFault(f"there is nothing at {path}: correct the path")
    else:
        raise DataFault(f"{path} is no folder, and no file that ends with {' or '.join(_READERS)}")
    named = path.is_dir() and any(file.stem in HELDOUT_FILES for file in files)
    for file in files:
        if not file.is_file():
            raise DataFault(f"{file} is no file: give it another name, or remove it")
        split: Split | None = ("heldout" if file.stem in HELDOUT_FILES else "train") if named else None
        try:
            for number, row in _READERS[file.suffix](file):
                yield _problem(row, f"{file.name} row {number}", split)
        except OSError as error:
            raise DataFault(f"{file} cannot be read: {error.strerror or error}") from error


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open("rb") as rows:
        for number, row in enumerate(iter(lambda: rows.readline(LONGEST_ROW + 1), b""), start=1):
            if len(row) > LONGEST_ROW:
                raise DataFault(f"{file.name} row {number} has more than {LONGEST_ROW} bytes: write a row per problem")
            if not row.strip():
                continue
            try:
                yield number, json.loads(row)
            except (ValueError, RecursionError) as error:
                raise DataFault(f"{file.name} row {number} is no JSON: {error}"[:300]) from error


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            columns = [name for name in (*PROBLEM, *ANSWER) if name in table.schema_arrow.names]
            for batch in table.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:  # text that is none, dates beyond Python's
        raise DataFault(f"{file.name} is no Parquet file, or a damaged one: {error}"[:300]) from error


_READERS: Final = {".jsonl": _jsonl, ".parquet": _parquet}


def _problem(row: Any, place: str, split: Split | None) -> Problem:
    if not isinstance(row, dict):
        raise DataFault(f"{place} is no object with a problem and an answer")
    question, answer = _text(row, PROBLEM, place), _text(row, ANSWER, place)
    return Problem(question, final_answer(answer), place, split)


def _text(row: dict[str, Any], keys: tuple[str, ...], place: str) -> str:
    value = next((row[key] for key in keys if row.get(key) is not None), None)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
        value = repr(value)
    if not isinstance(value, str) or not value.strip() or len(value) > MOST_PROBLEM_CHARACTERS:
        raise DataFault(f"{place} has no text of 1 to {MOST_PROBLEM_CHARACTERS} characters under {', '.join(keys)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataFault(f"{place} has half of a surrogate pair, which is no character: {error}") from error
    return value.strip()


def final_answer(solution: str) -> str:
    """Return the answer at the end of a solution (rule 1)."""
    if "####" in solution:
        return solution.rpartition("####")[2].strip() or solution
    start = solution.rfind("\\boxed{")
    if start < 0:
        return solution
    depth = 0
    for place in range(start + len("\\boxed"), len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            return solution[start + len("\\boxed{") : place].strip() or solution
    return solution
