"""Send a run's curves to TensorBoard: a process of its own reads history.jsonl and writes event files.

Rules
1. The file history.jsonl is the queue, with the bound of history.py, rule 1. The coordinator does not know this
   process: one that hangs, fails or is away costs it nothing, and reads later what it has missed.
2. A replay writes each record that the history has into a new file, of several of one number the last. Files that
   earlier ones wrote go once the new one is whole, so a second replay changes nothing.
3. A tracker gets numbers: metrics of steps, evaluations and versions, and settings that are numbers or switches.
   Texts are not sent, as some are paths, hosts or keys.
4. The axis is the step, or the version, which never falls; a rollback is seen by the era, a curve beside it.
"""

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.history import Curve, Record, decode_record
from echo2.coordinator.metrics.views import Evaluation, StepPoint
from echo2.coordinator.settings import config as configuration
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.surroundings import sentence_of

POLL_SECONDS: Final = 5.0
"""Seconds between two looks for new records."""
_SUFFIX: Final = ".echo2"
"""The end of the names of files that this module wrote, and may remove."""


class Points(NamedTuple):
    """The part of one record that a tracker gets. `at`: seconds since the Unix epoch."""

    number: int
    at: float
    values: dict[str, float]


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
    return Points(number, record.at / 1000, {f"{group}/{name}": value for name, value in finite.items()})


def numbers_of_settings(config: CoordinatorConfig) -> dict[str, float]:
    """Return the settings that are numbers or switches, by section and key (rule 3)."""
    return {
        f"{section}/{key}": float(value)
        for section, values in config.model_dump().items()
        for key, value in values.items()
        if isinstance(value, (bool, int, float))
    }


def replay(home: Path, logs: Path) -> str:
    """Write the history of a run into `logs` (rule 2); return a sentence. Raises `LocalFault`."""
    with _history(home) as (history, settings), _new_file(logs) as file:
        count = _write_all(history, file, settings)
    return f"{number_of(count, 'record')} of the history are in {logs}: tensorboard --logdir {logs}"


def follow(home: Path, logs: Path, report: Callable[[str], None], *, looks: int | None = None) -> None:
    """Write the history of a run into `logs`, then what is added to it, until interrupted. `looks`: how often it looks
    for more; None: without an end. Raises `LocalFault`."""
    with _history(home) as (history, settings), _new_file(logs) as file:
        count = _write_all(history, file, settings)
        report(f"{number_of(count, 'record')} of the history are in {logs}; what comes is added")
        for _ in itertools.count() if looks is None else range(looks):
            for record in history.additions():
                file.write(record)
            file.flush()
            time.sleep(POLL_SECONDS)


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


class _EventFile:
    """A new event file, and those of earlier replays that it replaces."""

    def __init__(self, logs: Path) -> None:
        """Raises `LocalFault`, OSError."""
        try:
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
            from tensorboardX.record_writer import RecordWriter
        except ImportError as error:
            raise LocalFault("tensorboardX is not installed: install the extra tensorboard (0.7 MB)") from error
        logs.mkdir(parents=True, exist_ok=True)
        self._earlier = [*logs.glob(f"events.out.tfevents.*{_SUFFIX}")]
        now = time.time_ns()
        self._event, self._summary = Event, Summary
        self._writer = RecordWriter(str(logs / f"events.out.tfevents.{now // 10**9}.{now}{_SUFFIX}"))
        try:
            self._add(wall_time=now / 1e9, file_version="brain.Event:2")
        except OSError:
            self.close()
            raise

    def write(self, record: Record) -> None:
        """Write the numbers of a record."""
        points = points_of(record)
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in points.values.items()]
        self._add(wall_time=points.at, step=points.number, summary=self._summary(value=values))

    def write_settings(self, settings: Mapping[str, float]) -> None:
        """Write settings as points at step 0."""
        values = [self._summary.Value(tag=f"settings/{key}", simple_value=value) for key, value in settings.items()]
        self._add(wall_time=time.time(), step=0, summary=self._summary(value=values))

    def replace_earlier(self) -> None:
        """Remove the files that this one replaces."""
        self.flush()
        for path in self._earlier:
            path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write what waits."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, **fields: object) -> None:
        self._writer.write(self._event(**fields).SerializeToString())


@contextlib.contextmanager
def _new_file(logs: Path) -> Iterator[_EventFile]:
    try:
        with contextlib.closing(_EventFile(logs)) as file:
            yield file
    except OSError as error:
        raise LocalFault(sentence_of(error, f"cannot write in {logs}: {error.strerror or error}")) from error


def _write_all(history: _History, file: _EventFile, settings: Mapping[str, float]) -> int:
    """Write each record once (rule 2); return how many. It reads twice, and remembers of a record its place alone."""
    file.write_settings(settings)
    curve, last, count = Curve.read(history.path), dict[tuple[type[Record], int], int](), 0
    for at, record in enumerate(history.records()):
        last[_key(record)] = at
    early: list[Record] = [*curve.steps.values(), *curve.evaluations.values(), *curve.versions.values()]
    for record in early:  # of before history-before.jsonl, thinned
        if _key(record) not in last:
            file.write(record)
            count += 1
    for at, record in enumerate(history.records()):
        if at >= last.get(_key(record), at):
            file.write(record)
            count += 1
    file.replace_earlier()
    return count


def _key(record: Record) -> tuple[type[Record], int]:
    return type(record), record.step if isinstance(record, StepPoint) else record.version
