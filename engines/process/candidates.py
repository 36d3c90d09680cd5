"""Choose engine, number format and device for a run on this machine: the fastest that work. Pure.

Rules
1. A candidate is an engine that is installed, a device that it sees, and a number format, whose class the run admits
   and has open. Emulated GPUs are none, nor is a second card of the same name: the one with the most free memory stands
   for all.
2. GPUs come before the CPU, in the order of engines.devices.devices. On them the format that needs the least memory
   comes first, and float16 before bfloat16. The CPU is timed only if no GPU gave a rate.
3. The best has the most tokens per second by the clock. Where two compute on the same CPU, by its own seconds: other
   programs disturb these less.
4. What the owner names is kept: it leaves fewer candidates, never others.
5. An engine made for a card is taken without a race where it works: on CUDA vLLM, in the first format that gives a
   rate, since each of its starts takes minutes; on AMD's, Intel's and Apple's cards llama.cpp, in its fastest format.
   The cards of a machine on which PyTorch or vLLM sees a CUDA device are not those.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from echo2.engines.devices.devices import KINDS, SINGLE_DEVICE_KINDS, Gpu, Inventory
from echo2.engines.engine import DTYPES, Dtype
from echo2.engines.rate import Rate
from echo2.runtime.figures import figure


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """An engine and what it sees. `devices`: kinds that it computes on. `fault`: why it could not look, or empty."""

    engine: str
    devices: tuple[str, ...]
    dtypes: tuple[Dtype, ...]
    inventory: Inventory
    fault: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """`device`: device as engines.devices.devices names it. `hardware`: its name."""

    engine: str
    dtype: Dtype
    device: str
    hardware: str

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]

    @property
    def engine_class(self) -> str:
        return f"{self.engine}/{self.dtype}/{self.kind}"

    @property
    def text(self) -> str:
        """Return it for people: 'llamacpp/float16/vulkan:0 (Radeon RX 6800)'."""
        return f"{self.engine}/{self.dtype}/{self.device} ({self.hardware})"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's result. `fault`: why there is no rate, or empty."""

    candidate: Candidate
    rate: Rate | None = None
    fault: str = ""


Admits = Callable[[str], str]
"""Returns why a run does not take an engine class, empty: it does."""


def candidates(sights: Sequence[Sight], admits: Admits) -> tuple[list[Candidate], list[Trial]]:
    """Return the candidates in the order of their trials, and those that lost without one."""
    seen = [
        Candidate(engine=sight.engine, dtype=dtype, device=device, hardware=gpu.name)
        for sight in sights
        for device, gpu in _devices(sight)
        for dtype in sight.dtypes
    ]
    lost = [
        Trial(candidate=Candidate(engine=sight.engine, dtype=dtype, device=f"{kind}:{index}", hardware=gpu.name),
              fault=gpu.fault)
        for sight in sights for kind, gpus in sight.inventory.gpus.items() for index, gpu in enumerate(gpus)
        for dtype in sight.dtypes[:1] if gpu.fault
    ]  # fmt: skip
    lost += [Trial(candidate=one, fault=admits(one.engine_class)) for one in seen if admits(one.engine_class)]
    left = [one for one in seen if not admits(one.engine_class)]
    return sorted(left, key=lambda one: _order(one, [sight.engine for sight in sights])), lost


_ON_CUDA: Final = "vllm"
_ON_OTHER_CARDS: Final = "llamacpp"


def favourites(ready: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that are taken without a race against the others (rule 5)."""
    on_cuda = [one for one in ready if one.kind == "cuda"]
    if on_cuda:
        return [one for one in on_cuda if one.engine == _ON_CUDA]
    return [one for one in ready if one.kind != "cpu" and one.engine == _ON_OTHER_CARDS]


def winner_over(trials: "Sequence[Trial]", first: Sequence[Candidate], rival: Candidate) -> Candidate | None:
    """Return the one of `first` that has given a rate and that `rival` need not be timed against; None: there is
    none."""
    works = next((one.candidate for one in trials if one.rate is not None and one.candidate in first), None)
    same = works is not None and rival in first and (works.engine != _ON_CUDA or works.device != rival.device)
    return None if same else works


def best(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial of the fastest candidate (rule 3); None: none gave a rate."""
    on_cpu = [one for one in trials if one.rate is not None and one.candidate.kind == "cpu"]
    others = [one for one in trials if one.rate is not None and one.candidate.kind != "cpu"]
    rivals = others + sorted(on_cpu, key=_per_cpu_second)[-1:]
    return max(rivals, key=_per_second, default=None)


def lines(trials: Sequence[Trial]) -> list[str]:
    """Return a sentence per candidate, the chosen one first: its rate, and why it was not chosen."""
    chosen = best(trials)
    rest = sorted((one for one in trials if one is not chosen), key=_per_second, reverse=True)
    return [_sentence(one, chosen) for one in ([chosen] if chosen is not None else []) + rest]


def equal_cards(chosen: Candidate, sights: Sequence[Sight]) -> list[Candidate]:
    """Return the candidates on all cards that the chosen one stands for (rule 1), itself among them."""
    kind, numbered = chosen.kind, chosen.kind not in SINGLE_DEVICE_KINDS
    gpus = next((sight.inventory.gpus.get(kind, []) for sight in sights if sight.engine == chosen.engine), [])
    alike = [number for number, gpu in enumerate(gpus) if gpu.name == chosen.hardware and not gpu.fault]
    devices = [f"{kind}:{number}" for number in alike if numbered]
    return [msgspec.structs.replace(chosen, device=device) for device in devices] or [chosen]


def fleet_lines(trials: Sequence[Trial]) -> list[str]:
    """Return a sentence per device of a node that uses them all: its rate, or why it has none."""
    return [f"{one.candidate.text}: {_rate_text(one) or one.fault}" for one in trials]


def _rate_text(trial: Trial) -> str:
    if trial.rate is None:
        return ""
    text = f"{figure(trial.rate.per_second)} tokens/s with {trial.rate.rows} rows"
    return text + (f", {figure(trial.rate.per_cpu_second)} per CPU second" if trial.candidate.kind == "cpu" else "")


def _sentence(trial: Trial, chosen: Trial | None) -> str:
    if trial.rate is None or chosen is None or chosen.rate is None:
        return f"{trial.candidate.text}: {trial.fault}"
    rate, text = trial.rate, f"{trial.candidate.text}: {_rate_text(trial)}"
    if trial is chosen:
        return f"{text}: chosen"
    if trial.candidate.kind == chosen.candidate.kind == "cpu":
        return f"{text}: {figure(rate.per_cpu_second / chosen.rate.per_cpu_second)} of the chosen rate"
    return f"{text}: {figure(rate.per_second / chosen.rate.per_second)} of the chosen rate"


def _devices(sight: Sight) -> list[tuple[str, Gpu]]:
    """Return the devices of an engine that are candidates (rule 1)."""
    chosen = []
    for kind, gpus in sight.inventory.gpus.items():
        usable = [(index, gpu) for index, gpu in enumerate(gpus) if not gpu.fault and not gpu.emulated]
        for name in dict.fromkeys(gpu.name for _, gpu in usable) if kind in sight.devices else []:
            index, gpu = max((one for one in usable if one[1].name == name), key=lambda one: (one[1].free, -one[0]))
            chosen.append((kind if kind in SINGLE_DEVICE_KINDS else f"{kind}:{index}", gpu))
    if "cpu" in sight.devices and not sight.fault:
        chosen.append(("cpu", Gpu(name=sight.inventory.cpu)))
    return chosen


_ON_GPUS: Final[tuple[Dtype, ...]] = ("blocks", "float16", "bfloat16", "float32")
"""By memory; float16 before bfloat16, which some cards lack. Equal rates leave the first."""


def _order(one: Candidate, engines: Sequence[str]) -> tuple[int, int, int]:
    dtypes = DTYPES if one.kind == "cpu" else _ON_GPUS
    return KINDS.index(one.kind), dtypes.index(one.dtype), engines.index(one.engine)


def _per_second(trial: Trial) -> float:
    return trial.rate.per_second if trial.rate is not None else -1.0


def _per_cpu_second(trial: Trial) -> float:
    return trial.rate.per_cpu_second if trial.rate is not None else -1.0
