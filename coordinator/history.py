"""The run's curve: steps, evaluations and published versions, as JSON lines in history.jsonl.

Rules
1. One line a record, appended and flushed: what a crash tears is at most the last line, which is skipped at start.
2. A step made again after a restart replaces the earlier one (same number), as does an evaluation of a version.
3. Nothing is decided from it: it is for people. What decisions need stands in run.sqlite and in the checkpoint.
"""

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from coordinator.state import Evaluation, StepPoint, VersionRow

Record = StepPoint | Evaluation | VersionRow
_KINDS: dict[str, type[Record]] = {"step": StepPoint, "evaluation": Evaluation, "version": VersionRow}


class _Line(msgspec.Struct, frozen=True):
    kind: str
    record: msgspec.Raw


class History:
    """Append and read back. One writer."""

    def __init__(self, path: Path) -> None:
        self.steps: dict[int, StepPoint] = {}
        self.evaluations: dict[int, Evaluation] = {}
        self.versions: dict[int, VersionRow] = {}
        if path.exists():
            self._load(path)
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 (lives as long as the daemon)

    def add(self, record: Record) -> None:
        """Keep a record and append its line."""
        kind = next(name for name, type_ in _KINDS.items() if isinstance(record, type_))
        self._keep(record)
        self._file.write(msgspec.json.encode({"kind": kind, "record": record}) + b"\n")

    def first_asked(self, version: int, now: int) -> None:
        """A node asks for a lease under `version`: note how long the first one took to come, `now` in milliseconds."""
        row = self.versions.get(version)
        if row is not None and row.first_node_seconds is None:
            self.add(msgspec.structs.replace(row, first_node_seconds=(now - row.at) / 1000))

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def _keep(self, record: Record) -> None:
        match record:
            case StepPoint():
                self.steps[record.step] = record
            case Evaluation():
                self.evaluations[record.version] = record
            case VersionRow():
                self.versions[record.version] = record

    def _load(self, path: Path) -> None:
        data = path.read_bytes()
        for line in data.splitlines():
            try:
                entry = msgspec.json.decode(line, type=_Line)
                self._keep(msgspec.json.decode(entry.record, type=_KINDS[entry.kind]))
            except (msgspec.MsgspecError, KeyError):
                continue  # rule 1: a torn line
        if data and not data.endswith(b"\n"):
            with open(path, "ab") as file:
                file.write(b"\n")
