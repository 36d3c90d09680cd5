"""`echo2-node engine install vllm`: make the environment of vLLM's own (engines/vllm/own_environment.py).

Rules
1. It is made of locks of this build, whose files all have hashes, and of this very echo2, from the source from which
   it was installed: a source that is gone, or not known, is refused before anything is made.
2. By uv where it is there, else by pip.
3. It is made beside the old one and takes its place once vLLM can be imported in it: an install that fails or is
   interrupted leaves what was there.
4. Without an NVIDIA card it is refused, unless vLLM for CPUs is asked for: the other cards have llama.cpp.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from echo2.engines.devices.system_gpus import system_gpus
from echo2.engines.vllm import own_environment
from echo2.engines.vllm.availability import PACKAGES
from echo2.node.errors import BadConfig, NoUsableDevice, TryLater
from echo2.runtime.files import writing
from echo2.runtime.installation import NO_SOURCE, TORCH_BUILDS, InstallSource, RunsUninstalled, read_installation
from echo2.runtime.lock import AlreadyLocked, lock_file

ENGINES: Final = (own_environment.NAME,)
SIZES: Final = {False: "about 9 GB", True: "3.6 GB"}
"""Whether for CPUs -> the size of the environment."""
LOCKS: Final = {False: "requirements-vllm-cuda.lock", True: "requirements-vllm.lock"}
BUILD_LOCK: Final = "requirements-build.lock"
TORCH_LOCKS: Final = {False: "requirements-torch.lock", True: "requirements-torch-cpu.lock"}
"""Whether it is the build for CPUs, which Linux alone has -> the lock of PyTorch."""
LOOK_SECONDS: Final = 2.0
SHOWN_CHARACTERS: Final = 2000
"""Characters of an installer's own words that are shown where a step fails."""

Say = Callable[[str], None]


class InstallStep(NamedTuple):
    """A command, and what it does, in words."""

    words: str
    command: Sequence[str]


def check(engine: str, *, cpu: bool) -> InstallSource:
    """Return the source of this echo2, or refuse (rules 1 and 4). Raises `BadConfig`, `NoUsableDevice`."""
    if engine not in ENGINES:
        raise BadConfig(f"no engine {engine} has an environment of its own: {', '.join(ENGINES)} has")
    if not cpu and not any(gpu.vendor == "nvidia" for gpu in system_gpus()):
        raise NoUsableDevice(
            "vLLM is for NVIDIA GPUs, and this machine shows none: llama.cpp, which is installed with echo2, computes "
            "on AMD's, Intel's and Apple's; --cpu installs vLLM for CPUs, to try it"
        )
    try:
        source = read_installation().source
    except RunsUninstalled as error:
        raise BadConfig(str(error)) from error
    if not source.there or NO_SOURCE in source.requirement((), newest=False):
        raise BadConfig(
            f"the environment needs this very echo2, which was installed from {source.describe()}: install echo2 from "
            "a wheel or a folder that stays, then again"
        )
    return source


def install(engine: str, *, cpu: bool, say: Say) -> None:
    """Make the environment; say each step with its size and seconds. Raises `NodeError`."""
    source, place = check(engine, cpu=cpu), own_environment.folder()
    new = place.with_name(f"{place.name}.new")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(place.with_name(f"{place.name}.lock")):
            shutil.rmtree(new, ignore_errors=True)
            try:
                for step in steps(new, source, cpu=cpu, uv=shutil.which("uv") or ""):
                    _run(step, new, say)
                _mark(new, cpu=cpu)
                _replace(place, new)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    except AlreadyLocked as error:
        raise TryLater(f"another command makes {place} already: wait for its end") from error
    except OSError as error:
        raise BadConfig(f"cannot write to {place}: {error.strerror}; name another folder with "
                        f"{own_environment.FOLDER_VARIABLE}") from error  # fmt: skip


def steps(new: Path, source: InstallSource, *, cpu: bool, uv: str) -> list[InstallStep]:
    """Return the steps that make an environment in the folder `new`. `uv`: path of uv; empty: pip is used."""
    python, plain = str(own_environment.python_of(new)), cpu and sys.platform == "linux"
    own = ["-e", source.place] if source.kind == "checkout" else [source.requirement((), newest=False)]
    if uv:
        empty, put = [uv, "venv", "--python", sys.executable, str(new)], [uv, "pip", "install", "--python", python]
        index = ["--torch-backend", "cpu"]
    else:
        empty, put = [sys.executable, "-m", "venv", str(new)], [python, "-m", "pip", "install", "-q"]
        index = ["--extra-index-url", f"{TORCH_BUILDS}cpu"]
    hashed = [*put, "--require-hashes", "--no-deps", "--only-binary", ":all:"]
    return [
        InstallStep("an empty environment", empty),
        InstallStep("what builds echo2", [*hashed, "-r", str(lock(BUILD_LOCK))]),
        InstallStep(f"vLLM and its libraries, of {LOCKS[cpu]}", [*hashed, "-r", str(lock(LOCKS[cpu]))]),
        InstallStep("PyTorch", [*hashed, *(index if plain else []), "-r", str(lock(TORCH_LOCKS[plain]))]),
        InstallStep("this echo2", [*put, "--no-deps", "--no-build-isolation", *own]),
        InstallStep("vLLM is imported once", [python, "-P", "-c", "import vllm, echo2.engines.process.host"]),
    ]


def lock(name: str) -> Path:
    """Return the path of a lock: in the wheel beside this engine's code, in a checkout in its first folder."""
    beside = Path(own_environment.__file__).resolve().parent / name
    return beside if beside.is_file() else Path(__file__).resolve().parents[2] / name


def _run(step: InstallStep, new: Path, say: Say) -> None:
    """Run a step. Raises `TryLater` with the end of its output."""
    began = time.monotonic()
    with subprocess.Popen(
        step.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", env=_clean(os.environ),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            printed = _output(process, step, new, began)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise TryLater(f"{step.words} failed with status {process.returncode}: {printed.strip()[-SHOWN_CHARACTERS:]}")
    say(_progress(step, new, began))


def _output(process: "subprocess.Popen[str]", step: InstallStep, new: Path, began: float) -> str:
    """Return what a process prints until its end; show its progress at a terminal meanwhile."""
    while True:
        try:
            printed, _ = process.communicate(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                print(f"\r{_progress(step, new, began)}", end="", file=sys.stderr, flush=True)
        else:
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return printed


def _progress(step: InstallStep, new: Path, began: float) -> str:
    return f"  {step.words:<58} {_megabytes(new):>6,} MB in all {time.monotonic() - began:>5.0f} s"


def _megabytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except FileNotFoundError:  # a file of an installer that works
                continue
    return total // 2**20


def _clean(environ: "os._Environ[str]") -> dict[str, str]:
    """Return the environment without what would lead Python or an installer elsewhere."""
    led = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in environ.items() if name not in led}


def _mark(new: Path, *, cpu: bool) -> None:
    """Write that the environment is whole. Raises `TryLater` where its echo2 is not this one."""
    code = (
        "import importlib.metadata as m, sys; from echo2.engines.vllm import own_environment as e;"
        "print(e.own_build()); print(sys.argv[1], m.version(sys.argv[1]))"
    )
    command = [str(own_environment.python_of(new)), "-P", "-c", code, PACKAGES[cpu]]
    asked = subprocess.run(command, capture_output=True, text=True, env=_clean(os.environ))
    if asked.returncode:
        raise TryLater(f"the new environment's Python failed: {asked.stderr.strip()[-SHOWN_CHARACTERS:]}")
    theirs, vllm = asked.stdout.splitlines()
    own = own_environment.own_build()
    if theirs != own:
        raise TryLater(f"its source gives echo2 {theirs}, and this one is {own}: update this echo2 first")
    with writing(new / own_environment.MARK) as file:
        file.write(msgspec.json.encode(own_environment.Mark(echo2=own, vllm=vllm)))


def _replace(place: Path, new: Path) -> None:
    """Put the new environment in the place of the old one."""
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)
