"""Send a run's curves to a tracker (metrics/trackers.py): a process of its own reads history.jsonl, and writes.

Rules
1. The file history.jsonl is the queue, with the bound of history.py, rule 1. The coordinator does not know this
   process: one that hangs, fails or is away costs it nothing, and reads later what it has missed.
2. A replay writes each record that the history has anew, of several of one number the last. The files of earlier
   replays go once the new curves are whole, so a second replay changes nothing.
3. A tracker gets numbers: metrics of steps, evaluations and versions, and settings that are numbers or switches.
   Texts are not sent, as some are paths, hosts or keys.
4. The axis is the step, or the version, which never falls; a rollback is seen by the era, a curve beside it.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics import trackers
from echo2.coordinator.metrics.history import Curve, Record, decode_record
from echo2.coordinator.metrics.trackers import Curves, Points, Tool
from echo2.coordinator.metrics.views import Evaluation, StepPoint
from echo2.coordinator.settings import config as configuration
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.surroundings import sentence_of

POLL_SECONDS: Final = 5.0
"""Seconds between two looks for new records."""


def points_of(record: Record) -> Points:
    """Return the finite numbers of a record, by the names of their curves (rule 3)."""
    match record:
        case StepPoint():
            number, group = record.step, "train"
            values: Mapping[str, float | None] = record.metrics | {
                name: getattr(record, name) for name in ("reward", "success", "staleness", "seconds", "cut_answers")
            }
        case Evaluation():
            number, group = record.version, "heldout"
            values = {name: getattr(record, name) for name in ("sampled", "greedy", "prompts")}
        case _:
            number, group = record.version, "version"
            names = ("era", "diff_bytes", "full_bytes", "first_node_seconds")
            values = {name: getattr(record, name) for name in names}
    finite = {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
    return Points(group, number, record.at, {f"{group}/{name}": value for name, value in finite.items()})


def numbers_of_settings(config: CoordinatorConfig) -> dict[str, float]:
    """Return the settings that are numbers or switches, by section and key (rule 3)."""
    return {
        f"{section}/{key}": float(value)
        for section, values in config.model_dump().items()
        for key, value in values.items()
        if isinstance(value, (bool, int, float))
    }


def replay(home: Path, logs: Path, tool: Tool = "tensorboard") -> str:
    """Write the history of a run into the folder `logs` (rule 2); return a sentence. Raises `LocalFault`."""
    with _history(home) as (history, settings), _curves(history, logs, tool, settings) as curves:
        count = _write_all(history, curves)
    return f"{number_of(count, 'record')} of the history are in {logs}: {trackers.viewer_of(tool, logs)}"


def follow(home: Path, logs: Path, report: Callable[[str], None], tool: Tool, wait: Callable[[float], bool]) -> None:
    """Write the history of a run into the folder `logs`, then what is added to it. `wait`: waits for so many seconds,
    and returns whether to end. Raises `LocalFault`."""
    with _history(home) as (history, settings), _curves(history, logs, tool, settings) as curves:
        count = _write_all(history, curves)
        report(f"{number_of(count, 'record')} of the history are in {logs}; what comes is added")
        ended = False
        while not ended:
            ended = wait(POLL_SECONDS)
            for record in history.additions():
                curves.write(points_of(record))
            curves.flush()


class _History:
    """The open files of a history. `path`: history.jsonl."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self._part = path, file, b""

    def records(self) -> Iterator[Record]:
        """Yield all records, those of history-before.jsonl first."""
        with contextlib.suppress(FileNotFoundError), self.path.with_name("history-before.jsonl").open("rb") as before:
            yield from filter(None, map(decode_record, before))
        self.file.seek(0)
        self._part = b""
        yield from self.additions()

    def additions(self) -> Iterator[Record]:
        """Yield the records that were added; where the coordinator began a new file, also those of that one."""
        while True:
            for piece in self.file:
                self._part += piece
                if self._part.endswith(b"\n"):
                    record = decode_record(self._part)
                    self._part = b""
                    if record is not None:
                        yield record
            try:
                fresh = self.path.open("rb")
            except FileNotFoundError:  # renamed, and the new file is not there yet
                return
            if os.path.sameopenfile(fresh.fileno(), self.file.fileno()):
                fresh.close()
                return
            self.file.close()
            self.file, self._part = fresh, b""


@contextlib.contextmanager
def _history(home: Path) -> Iterator[tuple[_History, dict[str, float]]]:
    place = RunFolder(home)
    settings = numbers_of_settings(configuration.load(place.config))
    if not place.history.exists():
        raise LocalFault(f"{home} has no history yet: start the run, and try again after its first step")
    try:
        history = _History(place.history, place.history.open("rb"))
    except OSError as error:
        raise LocalFault(f"cannot read {place.history}: {error.strerror}") from error
    try:
        yield history, settings
    finally:
        history.file.close()


@contextlib.contextmanager
def _curves(history: _History, logs: Path, tool: Tool, settings: Mapping[str, float]) -> Iterator[Curves]:
    curve = Curve.read(history.path)
    every: list[Record] = [*curve.steps.values(), *curve.evaluations.values(), *curve.versions.values()]
    try:
        begun = min((record.at for record in every), default=0)
        with contextlib.closing(trackers.open_curves(tool, logs, begun, settings)) as curves:
            yield curves
    except OSError as error:
        raise LocalFault(sentence_of(error, f"cannot write in {logs}: {error.strerror or error}")) from error


def _write_all(history: _History, curves: Curves) -> int:
    """Write each record once (rule 2); return how many. It reads twice, and remembers of a record its place alone."""
    curve, last, count = Curve.read(history.path), dict[tuple[type[Record], int], int](), 0
    for at, record in enumerate(history.records()):
        last[_key(record)] = at
    early: list[Record] = [*curve.steps.values(), *curve.evaluations.values(), *curve.versions.values()]
    for record in sorted(early, key=lambda one: one.at):  # of before history-before.jsonl, thinned
        if _key(record) not in last:
            curves.write(points_of(record))
            count += 1
    for at, record in enumerate(history.records()):
        if at >= last.get(_key(record), at):
            curves.write(points_of(record))
            count += 1
    curves.replace_earlier()
    return count


def _key(record: Record) -> tuple[type[Record], int]:
    return type(record), record.step if isinstance(record, StepPoint) else record.version
