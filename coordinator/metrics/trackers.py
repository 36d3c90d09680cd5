"""Write points of curves into a folder as TensorBoard, trackio or W&B keeps them there. Nothing is sent anywhere.

Rules
1. Each tracker writes files into the folder alone; its own program shows them, or sends them on
   (`wandb sync`, `trackio sync`).
2. New curves stand beside those of an earlier call until `replace_earlier`, which removes these. Files of others stay,
   and in trackio and W&B the curves of other runs of echo2.
3. Facts of this machine that a tracker would send by itself are switched off: host, user, program, folders, versions of
   packages, output, and figures of the system.
4. W&B drops points whose step is lower than one that it has, as after a rollback. So its own step is the time, in
   milliseconds since the first record; step and version are curves by which the others are drawn.
"""

import contextlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

from echo2.runtime.errors import LocalFault
from echo2.runtime.installation import command_adding

Tool = Literal["tensorboard", "trackio", "wandb"]
TOOLS: Final[tuple[Tool, ...]] = get_args(Tool)
_SUFFIX: Final = ".echo2"
"""The end of the names of event files that this module wrote, and may remove."""
_PROJECT: Final = "echo2"


class Points(NamedTuple):
    """The part of one record that a tracker gets. `group`: train, heldout or version. `number`: its step or version.
    `at`: milliseconds since the Unix epoch. `values`: values by the names of their curves."""

    group: str
    number: int
    at: int
    values: dict[str, float]


class Curves(Protocol):
    """Curves that are being written."""

    def write(self, points: Points) -> None:
        """Write the numbers of a record."""

    def replace_earlier(self) -> None:
        """Remove the curves of earlier calls (rule 2)."""

    def flush(self) -> None:
        """Write what waits."""

    def close(self) -> None:
        """End the curves."""


def open_curves(tool: Tool, logs: Path, begun: int, settings: Mapping[str, float]) -> Curves:
    """Begin new curves in the folder `logs`. `begun`: time of the run's first record, ms. `settings`: numbers by key.
    Raises `LocalFault`, OSError."""
    if logs.exists() and not logs.is_dir():
        raise LocalFault(f"{logs} is a file: name a folder")
    makers: Mapping[Tool, Callable[[Path, int, Mapping[str, float]], Curves]]
    makers = {"tensorboard": EventFile, "trackio": TrackioRun, "wandb": OfflineRun}
    return makers[tool](logs, begun, settings)


def viewer_of(tool: Tool, logs: Path) -> str:
    """Return the command that shows the curves of a folder."""
    if tool == "tensorboard":
        return f"tensorboard --logdir {logs}"
    if tool == "trackio":
        return f"TRACKIO_DIR={logs.absolute()} trackio show --project {_PROJECT}"
    return f"wandb sync {logs}/wandb/offline-run-*"


class EventFile:
    """A new event file of TensorBoard, and those of earlier calls that it replaces."""

    def __init__(self, logs: Path, begun: int, settings: Mapping[str, float]) -> None:
        """Raises `LocalFault`, OSError."""
        with _of_extra("tensorboardX", "tensorboard", "0.5 MB"):
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
            from tensorboardX.record_writer import RecordWriter
        logs.mkdir(parents=True, exist_ok=True)
        self._earlier = [*logs.glob(f"events.out.tfevents.*{_SUFFIX}")]
        now = time.time_ns()
        self._event, self._summary = Event, Summary
        self._writer = RecordWriter(str(logs / f"events.out.tfevents.{now // 10**9}.{now}{_SUFFIX}"))
        try:
            self._add(wall_time=now / 1e9, file_version="brain.Event:2")
            self._add_values(time.time(), 0, {f"settings/{key}": value for key, value in settings.items()})
        except OSError:
            self.close()
            raise

    def write(self, points: Points) -> None:
        """See `Curves`."""
        self._add_values(points.at / 1000, points.number, points.values)

    def replace_earlier(self) -> None:
        """See `Curves`."""
        self.flush()
        for path in self._earlier:
            path.unlink(missing_ok=True)

    def flush(self) -> None:
        """See `Curves`."""
        self._writer.flush()

    def close(self) -> None:
        """See `Curves`."""
        self._writer.close()

    def _add_values(self, at: float, step: int, values: Mapping[str, float]) -> None:
        rows = [self._summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(wall_time=at, step=step, summary=self._summary(value=rows))

    def _add(self, **fields: object) -> None:
        self._writer.write(self._event(**fields).SerializeToString())


class TrackioRun:
    """A new run of trackio, in the database of the folder, and earlier ones that it replaces."""

    def __init__(self, logs: Path, begun: int, settings: Mapping[str, float]) -> None:
        """Raises `LocalFault`, OSError."""
        logs.mkdir(parents=True, exist_ok=True)
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL"):
            os.environ.pop(name, None)
        # Read at its import; without the hub it does not look up whose token lies on this machine.
        os.environ |= {"TRACKIO_DIR": str(logs.absolute()), "HF_HUB_OFFLINE": "1"}
        with _of_extra("trackio", "trackio", "59 MB"):
            import trackio
        self._trackio: Any = trackio
        identity, self._earlier = f"{_PROJECT}-{begun:x}-", []
        with contextlib.suppress(ValueError):  # nothing is there yet
            self._earlier = [run for run in trackio.Api().runs(_PROJECT) if run.name.startswith(identity)]
        with _quiet():
            self._run = trackio.init(
                _PROJECT, name=f"{identity}{time.time_ns()}", config=dict(settings), embed=False, auto_log_gpu=False,
                auto_log_cpu=False,
            )  # fmt: skip

    def write(self, points: Points) -> None:
        """See `Curves`."""
        self._run.log(points.values, step=points.number)

    def replace_earlier(self) -> None:
        """See `Curves`."""
        for run in self._earlier:
            run.delete()

    def flush(self) -> None:
        """See `Curves`: a thread of trackio writes twice a second."""

    def close(self) -> None:
        """See `Curves`."""
        with _quiet():
            self._trackio.finish()


class OfflineRun:
    """A new offline run of W&B, and the folders of earlier ones that it replaces."""

    def __init__(self, logs: Path, begun: int, settings: Mapping[str, float]) -> None:
        """Raises `LocalFault`, OSError."""
        logs.mkdir(parents=True, exist_ok=True)
        with _of_extra("wandb", "wandb", "72 MB"):
            import wandb
        identity = f"{_PROJECT}-{begun:x}"
        self._begun, self._step = begun, 0
        self._earlier = [*logs.glob(f"wandb/offline-run-*-{identity}")]
        silent = wandb.Settings(
            mode="offline", console="off", silent=True, quiet=True, disable_code=True, disable_git=True,
            save_code=False, host="", username="", email="", program="", x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
        )  # fmt: skip
        try:
            self._run: Any = wandb.init(
                project=_PROJECT, id=identity, name=identity, dir=str(logs), config=dict(settings), settings=silent
            )
        except wandb.Error as error:
            raise LocalFault(f"W&B could not begin a run in {logs}: {' '.join(str(error).split())[:300]}") from error
        for group, axis in (("train", "step"), ("heldout", "version"), ("version", "version")):
            self._run.define_metric(f"{group}/*", step_metric=axis)

    def write(self, points: Points) -> None:
        """See `Curves`."""
        axis = "step" if points.group == "train" else "version"
        self._step = max(self._step, points.at - self._begun)
        self._run.log({axis: points.number, **points.values}, step=self._step)

    def replace_earlier(self) -> None:
        """See `Curves`."""
        for folder in self._earlier:
            shutil.rmtree(folder, ignore_errors=True)

    def flush(self) -> None:
        """See `Curves`: W&B's process writes by itself."""

    def close(self) -> None:
        """See `Curves`."""
        self._run.finish()


@contextlib.contextmanager
def _of_extra(package: str, extra: str, nbytes: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise LocalFault(f"{package} is not installed ({nbytes}): {command_adding(extra)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()):
        yield
