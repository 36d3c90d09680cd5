"""Measure a step of the learner beside a tracker that hangs, against one without a tracker: CPU time.

    python -m benchmarks.trackers             # 200 steps of each, in turns
    python -m benchmarks.trackers --quick     # 20 of each

A step is the product's own training step on the demo's tiny model, and the line that the coordinator adds to
history.jsonl. `echo2-coord track follow` has read the history of one of two folders, and is stopped (SIGSTOP) for as
long as steps are made. Then it goes on: whatever it had missed must be in its curves.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.harness import bench

bench.one_thread()

import torch  # noqa: E402

from benchmarks import learning  # noqa: E402
from benchmarks.harness.bench import Claim, timed  # noqa: E402
from echo2.coordinator.learner import step  # noqa: E402
from echo2.coordinator.learner.messages import Hyper  # noqa: E402
from echo2.coordinator.learner.optimiser import Optimiser  # noqa: E402
from echo2.coordinator.learner.warmup import build  # noqa: E402
from echo2.coordinator.metrics.history import History  # noqa: E402
from echo2.coordinator.metrics.track import POLL_SECONDS  # noqa: E402
from echo2.coordinator.metrics.views import StepPoint  # noqa: E402
from echo2.tasks import registry  # noqa: E402
from echo2.tasks.tokenizer import EOS, FileTokenizer, char_tokenizer  # noqa: E402

BAR: Final = 1.01
SETTING: Final = learning.Setting(hidden=96, layers=2, heads=8, groups=16, group_size=16)
END_SECONDS: Final = 60.0


def stepper(history: History) -> Callable[[], float]:
    """Return what makes a step and writes its line; each call returns 1."""
    torch.manual_seed(1)
    model, hyper = build(SETTING.shape, 1), Hyper(learning_rate=1e-4, warmup_steps=1)
    text, chance = FileTokenizer(char_tokenizer(), EOS), torch.Generator().manual_seed(1)
    batch = learning.collect(model, registry.get("reverse", 1), text, SETTING, 1, 0, chance)
    optimiser, made = Optimiser(model, hyper), 0

    def make() -> float:
        nonlocal made
        metrics = step.train_step(model, optimiser, batch, hyper, steps=made)
        made += 1
        history.add(StepPoint(step=made, at=time.time_ns() // 10**6, reward=0.5, success=0.5, staleness=1.0,
                              seconds=1.0, metrics=metrics))  # fmt: skip
        return 1.0

    return make


@contextmanager
def hanging(home: Path, logs: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run `track follow` until it has read the history, stop it, and kill it at the end."""
    command = [sys.executable, "-m", "echo2.coordinator.cli", "track", "follow", str(logs), "--home", str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the tracker did not start")
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


def steps_written(logs: Path) -> int:
    """Return how many steps the curves in a folder have."""
    from tensorboardX.proto.event_pb2 import Event

    steps = set[int]()
    for path in logs.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            steps |= {event.step for value in event.summary.value if value.tag == "train/reward"}
    return len(steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where the claims hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trackers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 steps of each")
    parser.add_argument("--steps", type=int, default=200, help="of each")
    asked = parser.parse_args(arguments)
    if find_spec("tensorboardX") is None:
        print("tensorboardX is not installed: make test-trackers makes .venv-trackers, which has it", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    bench.header("a step of the learner beside a tracker that hangs", ["torch", "transformers", "tensorboardX"])
    with tempfile.TemporaryDirectory(prefix="echo2-") as scratch:
        homes = {name: Path(scratch) / name for name in ("alone", "watched")}
        histories = dict[str, History]()
        for name, home in homes.items():
            home.mkdir()
            (home / "coordinator.toml").touch()
            histories[name] = History(home / "history.jsonl")
        steppers = {name: stepper(history) for name, history in histories.items()}
        for make in steppers.values():
            make()
        logs = Path(scratch) / "logs"
        with hanging(homes["watched"], logs) as tracker:
            candidates = {name: timed(make) for name, make in steppers.items()}
            done = bench.take_turns(candidates, 20 if asked.quick else asked.steps)
            tracker.send_signal(signal.SIGCONT)
            time.sleep(2 * POLL_SECONDS)
            tracker.terminate()
            tracker.wait(END_SECONDS)
            made, written = 2 + len(done["watched"]), steps_written(logs)
    rows = [[name, sum(one.cpu for one in results) / len(results)] for name, results in done.items()]
    bench.table(("history", "CPU s of a step"), rows)
    return bench.close(
        [
            Claim("step beside a tracker that hangs", 1 / bench.ratio(done["watched"], done["alone"]),
                  "a step without a tracker", BAR, at_most=True),
            Claim("steps in its curves after it went on", written / made, "all", 1.0),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
