"""Record the run's history in history.jsonl: steps, evaluations and published versions, as JSON lines.

Rules
1. One line per record, appended and flushed: a crash tears at most the last line, which is skipped at a start. A file
   of `MOST_BYTES` is renamed to history-before.jsonl, replacing the previous one, and a new file begins.
2. On the curve, a step repeated after a restart replaces the earlier one of its number; so does an
   evaluation of the same version.
3. The history is for people: no decision depends on it. Decisions use run.sqlite and the checkpoint.
4. The curve in memory has at most `MOST_CURVE_POINTS` points per kind: the newest `RECENT_CURVE_POINTS`, and of the
   earlier ones every second, fourth, eighth ... number, so that it spans the whole run. Sums over all versions are kept
   beside it.
5. Every `LINES_PER_SAVE` lines that curve is written to history-thinned.json, with the length of history.jsonl that it
   covers. A start reads that file and the lines after that length. If the file is missing, damaged or covers another
   history.jsonl, a start reads all lines.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeVar

import msgspec

from echo2.coordinator.metrics.views import Evaluation, StepPoint, VersionRow

MOST_CURVE_POINTS: Final = 500
RECENT_CURVE_POINTS: Final = 250
LINES_PER_SAVE: Final = 1_000
MOST_BYTES: Final = 64 << 20

Record = StepPoint | Evaluation | VersionRow
R = TypeVar("R", StepPoint, Evaluation, VersionRow)
_KINDS: dict[str, type[Record]] = {"step": StepPoint, "evaluation": Evaluation, "version": VersionRow}


class _HistoryRow(msgspec.Struct, frozen=True):
    kind: str
    record: msgspec.Raw


class _Thinned(msgspec.Struct, frozen=True, kw_only=True):
    """The content of history-thinned.json. `length`: bytes of history.jsonl that it covers. `end`: the last 64 of them,
    in hex."""

    length: int
    end: str
    diff_bytes: int
    full_bytes: int
    steps: list[StepPoint]
    evaluations: list[Evaluation]
    versions: list[VersionRow]


def kept_numbers(numbers: Iterable[int]) -> set[int]:
    """Choose the numbers that stay on a curve (rule 4): the first, thinned earlier ones, and the newest
    `RECENT_CURVE_POINTS`."""
    ordered = sorted(numbers)
    early, stride = ordered[:-RECENT_CURVE_POINTS], 1
    while sum(number % stride == 0 for number in early) > (MOST_CURVE_POINTS - RECENT_CURVE_POINTS) // 2:
        stride *= 2
    return {*ordered[:1], *(number for number in early if number % stride == 0), *ordered[-RECENT_CURVE_POINTS:]}


def decode_record(record_line: bytes) -> Record | None:
    """Return the record of one line of history.jsonl; None: it is torn (rule 1)."""
    try:
        entry = msgspec.json.decode(record_line, type=_HistoryRow)
        return msgspec.json.decode(entry.record, type=_KINDS[entry.kind])
    except (msgspec.MsgspecError, KeyError):
        return None


class Curve:
    """The curve of a run, as its files have it. `diff_bytes`: sum over all versions published as a diff. `full_bytes`:
    sum over the same versions' snapshots."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[int, StepPoint] = {}
        self.evaluations: dict[int, Evaluation] = {}
        self.versions: dict[int, VersionRow] = {}
        self.diff_bytes = self.full_bytes = 0
        self._path, self._thinned = path, path.with_name("history-thinned.json")
        self._unsaved = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the curve beside its writer. Raises OSError."""
        curve = cls(path)
        if path.exists():
            with path.open("rb") as file:
                curve._read_lines(file)
        return curve

    def _read_lines(self, file: BinaryIO) -> bytes:
        """Read the curve from the files (rule 5); return the last line of history.jsonl."""
        file.seek(self._restore(file))
        record_line = b"\n"
        for record_line in file:
            self._unsaved += 1
            if (record := decode_record(record_line)) is not None:
                self._keep(record)
        return record_line

    def _restore(self, file: BinaryIO) -> int:
        """Read history-thinned.json; return the length of history.jsonl that it covers, 0 if it cannot be used."""
        try:
            thinned = msgspec.json.decode(self._thinned.read_bytes(), type=_Thinned)
            if _end(file, thinned.length) != thinned.end:
                return 0
        except (OSError, msgspec.MsgspecError):
            return 0
        records: list[Record] = [*thinned.steps, *thinned.evaluations, *thinned.versions]
        for record in records:
            self._keep(record)
        self.diff_bytes, self.full_bytes = thinned.diff_bytes, thinned.full_bytes
        return thinned.length

    def _keep(self, record: Record) -> None:
        match record:
            case StepPoint():
                _put(self.steps, record.step, record)
            case Evaluation():
                _put(self.evaluations, record.version, record)
            case VersionRow():
                self._add_up(self.versions.get(record.version), -1)
                self._add_up(record, 1)
                _put(self.versions, record.version, record)

    def _add_up(self, row: VersionRow | None, sign: int) -> None:
        if row is not None and row.diff_bytes is not None:
            self.diff_bytes += sign * row.diff_bytes
            self.full_bytes += sign * row.full_bytes


class History(Curve):
    """The open history of a run, with one writer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._length = self._load() if path.exists() else 0
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the daemon)
        self._save_when_due()

    def add(self, record: Record) -> None:
        """Add a record to the curve and append its line."""
        kind = next(name for name, type_ in _KINDS.items() if isinstance(record, type_))
        self._keep(record)
        record_line = msgspec.json.encode({"kind": kind, "record": record}) + b"\n"
        self._file.write(record_line)
        self._length += len(record_line)
        self._unsaved += 1
        if self._length >= MOST_BYTES:
            self._begin_anew()
        self._save_when_due()

    def first_asked(self, version: int, now: int) -> None:
        """Record a lease request under `version` at `now` (milliseconds); only the first one of a version counts."""
        row = self.versions.get(version)
        if row is not None and row.first_node_seconds is None:
            self.add(msgspec.structs.replace(row, first_node_seconds=(now - row.at) / 1000))

    def close(self) -> None:
        """Sync history.jsonl to the disk, and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _load(self) -> int:
        """Read the curve, and end a torn line; return the length of history.jsonl."""
        with open(self._path, "r+b") as file:
            if not self._read_lines(file).endswith(b"\n"):
                file.write(b"\n")
            return file.tell()

    def _begin_anew(self) -> None:
        """Rename the full file and begin a new one. The curve stays in memory and in history-thinned.json."""
        with contextlib.suppress(OSError):  # the file then grows a little more, and the next record tries again
            self._path.replace(self._path.with_name("history-before.jsonl"))
            self._file.close()
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the daemon)
            self._length = 0
            self._save()

    def _save_when_due(self) -> None:
        if self._unsaved >= LINES_PER_SAVE:
            self._unsaved = 0
            with contextlib.suppress(OSError):  # without it the next start only reads more lines
                self._save()

    def _save(self) -> None:
        with open(self._path, "rb") as file:
            end = _end(file, self._length)
        thinned = _Thinned(
            length=self._length,
            end=end,
            diff_bytes=self.diff_bytes,
            full_bytes=self.full_bytes,
            steps=list(self.steps.values()),
            evaluations=list(self.evaluations.values()),
            versions=list(self.versions.values()),
        )
        hidden = self._thinned.with_name(f".{self._thinned.name}.tmp")
        hidden.write_bytes(msgspec.json.encode(thinned))
        hidden.replace(self._thinned)


def _put(records: dict[int, R], number: int, record: R) -> None:
    records[number] = record
    if len(records) > MOST_CURVE_POINTS:
        for dropped in records.keys() - kept_numbers(records):
            del records[dropped]


def _end(file: BinaryIO, length: int) -> str:
    """Return the last 64 of the first `length` bytes of a file, in hex, to tell it from another file; empty if the file
    is shorter."""
    file.seek(max(0, length - 64))
    return file.read(min(64, length)).hex() if length <= os.fstat(file.fileno()).st_size else ""
