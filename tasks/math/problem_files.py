"""Problems and answers of a data set, divided into training and held-out ones.

Rules
1. Files named for validation are held out, and those for test where none are; else a test is never read. Where no file
   says a split, or all say train, the hash of a problem decides: one in ten is held out.
2. Blanks, letter case and Unicode's compatible forms make no difference between problems. Answers are equal where each
   would be rewarded for the other (equality.py); `MOST_COMPARED` pairs are compared like that. Equal problems with
   equal answers count once. One that is held out too leaves training. One with other answers is left out whole.
3. A row that cannot be used is left out. More of them than a share of all rows refuse the data, with the first ones
   by file and row: the fields are then most likely other ones.
4. All of it is said: files, problems, and each kind of what is left out (`Data.remarks`).
"""

import hashlib
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from echo2.tasks.chat import Message
from echo2.tasks.math import equality
from echo2.tasks.math.data_files import DataFault, DataFile, FileSplit, files_of, rows_of
from echo2.tasks.math.notation import number_of, plain
from echo2.tasks.math.row_fields import Fields, RowFault, answers_of, problem_of
from echo2.tasks.task import Split

SHOWN_ROWS: Final = 10
"""Rows left out that are named, for each reason; and reasons that are named."""
MOST_COMPARED: Final = 10_000
"""Pairs of answers that Math-Verify compares, each in some milliseconds; beyond these only their notation counts."""


class Problem(NamedTuple):
    """A problem. `posed`: its text, or its messages. `answers`: any one is right. `place`: file and row, for people.
    `split`: None: its hash decides."""

    posed: str | tuple[Message, ...]
    answers: tuple[str, ...]
    place: str
    split: Split | None


class Data(NamedTuple):
    """A data set. `splits`: problems in an order that depends on them alone. `remarks`: sentences for the operator."""

    splits: dict[Split, list[Problem]]
    remarks: list[str]


class _Rows:
    """The rows of a data set, as they are read."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        """`left_out`: places of the rows that cannot be used, by the reason."""
        self.taken = self.other_kind = 0
        self.left_out: dict[str, list[str]] = {}

    def problems(self, file: DataFile, split: Split | None) -> Iterator[Problem]:
        for number, row in rows_of(file, self._fields.columns()):
            if not self._fields.takes(row):
                self.other_kind += 1
                continue
            self.taken += 1
            place = f"{file.name} row {number}"
            try:
                yield Problem(problem_of(row, self._fields), answers_of(row, self._fields), place, split)
            except RowFault as fault:
                self.left_out.setdefault(str(fault), []).append(place)


def read(path: Path, fields: Fields) -> Data:
    """Return the problems of a path. Raises `DataFault`."""
    files = files_of(path)
    names = {file.split for file in files}
    heldout: FileSplit | None = next((name for name in ("heldout", "test") if name in names), None)  # type: ignore[assignment, unused-ignore]
    rows, kept = _Rows(fields), _Kept()
    for file in files:
        if heldout is None or file.split in ("train", heldout):
            split: Split | None = None if heldout is None else "train" if file.split == "train" else "heldout"
            for problem in rows.problems(file, split):
                kept.add(problem)
    number = sum(map(len, rows.left_out.values())) + len(kept.conflicts())
    unusable = "; ".join([*_name_reasons(rows.left_out), *_first(kept.conflicts())])
    if number > fields.left_out * rows.taken:
        needed = math.ceil(100 * number / rows.taken) / 100
        raise DataFault(
            f"{number} of {rows.taken} rows of {path} cannot be used, more than the share of {fields.left_out:g} that "
            f"may be left out: correct them, or allow it by left_out={needed:g} in the query behind the path. "
            f"They are {unusable}"
        )
    splits = kept.splits()
    for name, problems in splits.items():
        if not problems:
            raise DataFault(
                f"{path} has no problem in the split {name} (rows: {rows.taken} taken, {rows.other_kind} of another "
                "kind): add some. Files named for validation or test are held out; where none is, the hash of a "
                "problem holds out one in ten"
            )
    return Data(
        splits,
        [
            *_name_files(files, heldout, splits),
            *_name_rest(rows, kept),
            *(
                [f"{_number(number, 'row or problem is', 'rows or problems are')} left out: {unusable}"]
                if number
                else []
            ),
        ],
    )


class _Kept:
    """Problems by their digest (rule 2)."""

    def __init__(self) -> None:
        self._problems: dict[bytes, Problem] = {}
        self._conflicts: dict[bytes, str] = {}
        self.repeated = self.in_both = self._compared = 0

    def add(self, problem: Problem) -> None:
        key = digest(problem.posed)
        before = self._problems.setdefault(key, problem)
        if before is problem or key in self._conflicts:
            return
        if not self._are_equal(before.answers, problem.answers):
            self._conflicts[key] = (
                f"{before.place} and {problem.place} have one problem with two answers, {before.answers[0]!r:.60} and "
                f"{problem.answers[0]!r:.60}"
            )
        elif before.split == problem.split:
            self.repeated += 1
        else:
            self.in_both += 1
            self._problems[key] = problem if problem.split == "heldout" else before

    def _are_equal(self, answers: tuple[str, ...], others: tuple[str, ...]) -> bool:
        if _values(answers) == _values(others):
            return True
        self._compared += 1
        return self._compared <= MOST_COMPARED and all(
            equality.is_any(these, f"\\boxed{{{one}}}") for these, those in ((answers, others), (others, answers))
            for one in those
        )  # fmt: skip

    def conflicts(self) -> list[str]:
        return list(self._conflicts.values())

    def splits(self) -> dict[Split, list[Problem]]:
        splits: dict[Split, list[Problem]] = {"train": [], "heldout": []}
        for key, problem in sorted(self._problems.items()):
            if key not in self._conflicts:
                splits[problem.split or ("heldout" if key[0] % 10 == 0 else "train")].append(problem)
        return splits


def _values(answers: Sequence[str]) -> frozenset[object]:
    """Return answers by what they say: numbers by their value, others without typography (rule 2)."""
    texts = [plain(answer) for answer in answers]
    numbers = [number_of(text) for text in texts]
    return frozenset(
        "".join(text.split()) if number is None else number.value for text, number in zip(texts, numbers, strict=True)
    )


def digest(posed: str | Sequence[Message]) -> bytes:
    """Return the hash of a problem (rule 2)."""
    text = posed if isinstance(posed, str) else "\n".join(f"{one['role']}: {one['content']}" for one in posed)
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hashlib.blake2b(plain.encode(errors="replace"), key=b"echo2/math", digest_size=16).digest()


def version_of(data: Data, ask: str | None) -> int:
    """Return a version that tells data apart: 31 bits of the hash of all problems, answers and the request behind
    them, at least 1."""
    state = hashlib.blake2b(json.dumps(ask).encode(), key=b"echo2/math", digest_size=4)
    for split, problems in data.splits.items():
        for problem in problems:
            state.update(json.dumps([split, problem.posed, problem.answers]).encode())
    return max(1, int.from_bytes(state.digest(), "little") >> 1)


def _name_files(
    files: Sequence[DataFile], heldout: FileSplit | None, splits: dict[Split, list[Problem]]
) -> Iterator[str]:
    if heldout is None:
        yield (
            f"{_count(files)} without a file of validation or test: one problem in ten is held out by its hash, "
            f"{len(splits['heldout'])} of {sum(map(len, splits.values()))}"
        )
        return
    for split, name in (("train", "train"), ("heldout", heldout)):
        read_files = [file for file in files if file.split == name]
        number = len(splits[split])  # type: ignore[index]
        yield f"{split}: {_number(number, 'problem', 'problems')} of {_count(read_files)}"
    unread = [file for file in files if file.split not in ("train", heldout)]
    if unread:
        yield f"not read, for it is a test: {_count(unread)}"


def _name_reasons(left_out: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield each reason with the first rows that it holds for."""
    for reason, places in list(left_out.items())[:SHOWN_ROWS]:
        more = f" and {len(places) - SHOWN_ROWS} more" if len(places) > SHOWN_ROWS else ""
        yield f"{', '.join(places[:SHOWN_ROWS])}{more}: {reason}"
    if len(left_out) > SHOWN_ROWS:
        yield f"{sum(map(len, list(left_out.values())[SHOWN_ROWS:]))} more rows for other reasons"


def _first(conflicts: Sequence[str]) -> list[str]:
    more = len(conflicts) - SHOWN_ROWS
    return [*conflicts[:SHOWN_ROWS], *([f"and {more} more such problems"] if more > 0 else [])]


def _name_rest(rows: _Rows, kept: _Kept) -> Iterator[str]:
    if rows.other_kind:
        yield f"{_number(rows.other_kind, 'row is', 'rows are')} of another kind (where)"
    if kept.repeated:
        repeated = _number(kept.repeated, "row repeats", "rows repeat")
        yield f"{repeated} a problem with its answer and count{'s' if kept.repeated == 1 else ''} once"
    if kept.in_both:
        yield f"{_number(kept.in_both, 'problem is', 'problems are')} in both splits, and not trained on"


def _number(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _count(files: Sequence[DataFile]) -> str:
    names = ", ".join(file.name for file in files[:3])
    return f"{len(files)} file{'s' if len(files) > 1 else ''} ({names}{', ...' if len(files) > 3 else ''})"
