"""Resolve what settings leave to this machine: the devices and the threads of learner and scorers.

1. `auto` takes the GPU with the most free memory that PyTorch can use, else the CPU. Where the system shows no GPU,
   nothing else is asked; else a child process asks PyTorch, which the main process never imports.
2. One answer counts for a process's life: checkpoints and journal record it, so that a replay computes alike.
3. The scorers compute on the learner's device, or on those that `scorer.devices` names, one on each. Those of Ray
   compute on other hosts (coordinator/ray_scorers).
4. A device that is named is used or refused, never replaced: PyTorch is asked for it, whatever the system shows. `init`
   refuses it before anything is made, `run` and `calibrate` before they start anything, `config set` before it writes.
"""

import subprocess
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from echo2.coordinator.settings.scorer_config import ScorerSection
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
    """`device`: torch's name of the learner's device. `threads`: threads of each process, on a CPU. `why`: why this
    device; empty: the settings name it. `scorers`: devices of the scorers; empty: one scorer, on `device`. `by_ray`:
    kinds of the devices of scorers that Ray places on its hosts, in place of these."""

    device: str
    threads: int
    why: str
    scorers: tuple[str, ...] = ()
    by_ray: tuple[str, ...] = ()

    @property
    def scorer_devices(self) -> tuple[str, ...]:
        """The devices of the scorers, at least one."""
        return self.scorers or (self.device,)

    def sentence(self) -> str:
        """Return one line for people."""
        why = f" ({self.why})" if self.why else ""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.by_ray:
            return (
                f"the learner computes on {self.device}{why}, with {threads}; {len(self.by_ray)} scorers on "
                f"{', '.join(self.by_ray)}, where Ray places them"
            )
        if not self.scorers:
            return f"learner and scorer compute on {self.device}{why}, each process with {threads}"
        number = "one scorer" if len(self.scorers) == 1 else f"{len(self.scorers)} scorers"
        return (
            f"the learner computes on {self.device}{why}, {number} on {', '.join(self.scorers)}; each process with "
            f"{threads}"
        )


def computing_of(
    section: LearnerSection, scorer: ScorerSection, automatic: Callable[[], tuple[str, str]] | None = None
) -> Computing:
    """Return devices and threads. `automatic`: returns device and reason for `auto`; None: this machine's."""
    device, why = (automatic or automatic_device)() if section.device == AUTO else (section.device, "")
    if section.ranks > 1:
        device = device.partition(":")[0]  # each rank has the GPU of its number
    scorers = scorer.own_devices
    # They compute beside each other and the ranks, on the same cores.
    on_cpu = 0 if scorer.ray else (scorers or (device,)).count("cpu")
    ranks = section.ranks if device == "cpu" or not on_cpu else 0
    return Computing(device, threads_of(section.threads, max(1, ranks + on_cpu)), why, scorers, scorer.ray_devices)


def check_present(section: LearnerSection, scorer: ScorerSection) -> None:
    """Check that this machine has the devices that the settings name (rule 4). Raises `SettingsFault`."""
    kind = section.device.partition(":")[0]
    last = f"{kind}:{section.ranks - 1}" if section.ranks > 1 else section.device
    named = {last: ("learner.device", section.device)}
    named |= {device: ("scorer.devices", device) for device in scorer.own_devices if device not in named}
    for device, (setting, name) in named.items():
        if device.partition(":")[0] in (AUTO, "cpu"):
            continue
        _, _, fault = device_by_torch(device)
        if fault:
            advice = "set auto" if setting == "learner.device" else "name devices that it has, or auto"
            raise SettingsFault(f"{setting} is {name}, which this machine cannot use ({fault}): {advice}")


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
