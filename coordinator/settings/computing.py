"""Resolve what settings leave to this machine: the device and the threads of learner and scorer.

1. `auto` takes the GPU with the most free memory that PyTorch can use, else the CPU. Where the system shows no GPU,
   nothing else is asked; else a child process asks PyTorch, which the main process never imports.
2. One answer counts for a process's life: checkpoints and journal record it, so that a replay computes alike.
3. A device that is named is used or refused, never replaced: PyTorch is asked for it, whatever the system shows. `init`
   refuses it before anything is made, and `run` and `calibrate` before they start anything.
"""

import subprocess
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from echo2.coordinator.settings.training_config import LearnerSection
from echo2.engines.devices.system_gpus import system_gpus
from echo2.runtime.python_command import code_command
from echo2.runtime.settings import SettingsFault
from echo2.runtime.usable_cores import threads_of

AUTO: Final = "auto"
PROGRAM: Final = """
import sys
from echo2.engines.devices.devices import NoDevice, choose
try:
    chosen = choose(sys.argv[1], kinds=("cuda", "xpu", "cpu") if sys.argv[1] == "auto" else sys.argv[1].split(":")[:1])
except NoDevice as error:
    raise SystemExit(str(error))
print(chosen.kind, f"{chosen.name}: {chosen.why}", sep="\\t")
"""
TORCH_SECONDS: Final = 120.0
"""Seconds for PyTorch's import and a first use of each GPU."""


class Computing(NamedTuple):
    """`device`: torch's name of the device of learner and scorer. `threads`: threads of each process, on a CPU. `why`:
    why this device; empty: the settings name it."""

    device: str
    threads: int
    why: str

    def sentence(self) -> str:
        """Return one line for people."""
        why = f" ({self.why})" if self.why else ""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"learner and scorer compute on {self.device}{why}, each process with {threads}"


def computing_of(section: LearnerSection, automatic: Callable[[], tuple[str, str]] | None = None) -> Computing:
    """Return device and threads. `automatic`: returns device and reason for `auto`; None: this machine's."""
    device, why = (automatic or automatic_device)() if section.device == AUTO else (section.device, "")
    if section.ranks > 1:
        device = device.partition(":")[0]  # each rank has the GPU of its number
    scorer = 1 if device == "cpu" else 0  # it computes beside the ranks, on the same cores
    return Computing(device, threads_of(section.threads, section.ranks + scorer), why)


def check_present(section: LearnerSection) -> None:
    """Check that this machine has the device that `learner.device` names (rule 3). Raises `SettingsFault`."""
    kind = section.device.partition(":")[0]
    if kind in (AUTO, "cpu"):
        return
    last = f"{kind}:{section.ranks - 1}" if section.ranks > 1 else section.device
    _, _, fault = device_by_torch(last)
    if fault:
        raise SettingsFault(f"learner.device is {section.device}, which this machine cannot use ({fault}): set auto")


@cache
def automatic_device() -> tuple[str, str]:
    """Return device and reason (rule 1)."""
    if not system_gpus():
        return "cpu", "the system shows no GPU"
    device, why, fault = device_by_torch(AUTO)
    return ("cpu", fault) if fault else (device, why)


def device_by_torch(spec: str) -> tuple[str, str, str]:
    """Return (device, reason, fault) as PyTorch says them of `auto` or a device's name, in a process of its own."""
    try:
        done = subprocess.run(
            code_command(PROGRAM, spec), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TORCH_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", "", f"PyTorch did not look for a GPU within {TORCH_SECONDS:g} s"
    device, _, why = done.stdout.strip().rpartition("\n")[2].partition("\t")
    if done.returncode or not why:
        return "", "", f"PyTorch found no device: {(done.stderr.strip().splitlines() or ['no output'])[-1][:200]}"
    return device, why, ""
