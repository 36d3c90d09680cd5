"""The engine classes that a run's settings admit, as far as this build knows their engines. Pure.

1. An admitted class is a prefix of engine/dtype/device. Where it names no number format the run's own counts, and where
   it names no device the one that `auto` would choose.
2. An engine of this build has the number formats and devices of its row (engines/registry.py). An engine of another
   build may be admitted in float32, where its tokens are checked one by one, and in the formats whose Calibration needs
   no engine of theirs. No name is a slip of the pen for an engine of this build: these facts are signed, and a run
   that admits nobody would wait for ever.
"""

import difflib
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.coordinator.settings.training_config import LearnerSection, RunSection
from echo2.engines.devices.devices import NoDevice, check_name
from echo2.engines.registry import AUTO_ENGINE, FLOATS, engine_names, find, is_exact, rounding_of
from echo2.protocol.engine_classes import parts
from echo2.runtime.settings import SettingsFault

_LEARNERS_ENGINE: Final = "transformers"
"""The engine that computes on what the learner computes on."""


class AdmittedClass(NamedTuple):
    """A class of `run.engines`, completed by rule 1. `device`: auto where none is named."""

    engine: str
    dtype: str
    device: str

    @property
    def name(self) -> str:
        """The class as far as it is known."""
        return "/".join(part for part in self if part != AUTO_ENGINE)


def admitted_classes(settings: RunSection) -> list[AdmittedClass]:
    """Return the admitted classes, each once."""
    classes = dict[AdmittedClass, None]()
    for one in settings.engines:
        name, dtype, device, *_ = [*parts(one), "", ""]
        classes[AdmittedClass(name, dtype or settings.compute_dtype, device or AUTO_ENGINE)] = None
    return list(classes)


def closed_classes(settings: RunSection) -> list[AdmittedClass]:
    """Return the admitted classes that need a Calibration, or may need one by their device."""
    return [one for one in admitted_classes(settings) if not is_exact(one.name)]


def admitted_formats(engines: Sequence[str]) -> set[str]:
    """Return the number formats that prefixes of classes admit in an engine without a rounding of its own."""
    formats = set[str]()
    for one in engines:
        name, dtype, *_ = [*parts(one), ""]
        row = find(name)
        every = FLOATS if row is None else row.dtypes
        formats |= {rounding_of(f"{name}/{each}") for each in ([dtype] if dtype else every)}
    return {one for one in formats if "/" not in one}


def exact_devices(admitted: AdmittedClass) -> list[str]:
    """Return the devices on which an admitted class that names none is exact, and so open without a Calibration."""
    row = find(admitted.engine)
    devices = row.devices if row is not None and admitted.device == AUTO_ENGINE else ()
    return [device for device in devices if is_exact(f"{admitted.name}/{device}")]


def check_devices(learner: LearnerSection, scorer: ScorerSection) -> None:
    """Check that `learner.device` and `scorer.devices` name devices of PyTorch's. Raises `SettingsFault`."""
    row = find(_LEARNERS_ENGINE)
    assert row is not None
    named = () if scorer.devices == "auto" else scorer.devices
    for setting, device in (("learner.device", learner.device), *(("scorer.devices", one) for one in named)):
        try:
            check_name(device, row.devices)
        except NoDevice as error:
            raise SettingsFault(f"{setting}: {error}") from error


def check_admitted(settings: RunSection) -> None:
    """Check the admitted classes against rule 2. Raises `SettingsFault`."""
    for one in admitted_classes(settings):
        row = find(one.engine)
        if row is None and (nearest := difflib.get_close_matches(one.engine, engine_names(), 1)):
            raise SettingsFault(f"run.engines admits {one.name}: there is no such engine; did you mean {nearest[0]}?")
        if row is None and one.dtype not in FLOATS:
            raise SettingsFault(
                f"run.engines admits {one.name}, whose engine this build does not have: nobody could calibrate it; "
                f"admit it in {' or '.join(FLOATS)}, or leave it out"
            )
        if row is not None and one.dtype not in row.dtypes:
            raise SettingsFault(
                f"run.engines admits {one.name}, but {row.name} computes in {' or '.join(row.dtypes)} alone"
            )
        if row is not None and one.device not in (AUTO_ENGINE, *row.devices):
            raise SettingsFault(f"run.engines admits {one.name}, but {row.name} computes on {', '.join(row.devices)}")
