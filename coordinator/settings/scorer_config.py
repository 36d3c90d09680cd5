"""The settings of the scorers."""

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from echo2.coordinator.settings.config_section import Section, frozen_list

MOST_SCORERS = 64
_DEVICE = re.compile(r"[a-z]{1,20}(:\d{1,3})?")


def _devices(value: object) -> object:
    """Return a list of devices as a tuple, and auto. Raises `ValueError`."""
    names = list(value) if isinstance(value, (list, tuple)) else []
    if value == "auto" or (
        0 < len(names) <= MOST_SCORERS and all(isinstance(one, str) and _DEVICE.fullmatch(one) for one in names)
    ):
        return frozen_list(value)
    raise ValueError(f'should be auto, or a list of devices as ["cuda:1", "cuda:2"] or ["cpu", "cpu"], not {value!r}')


class ScorerSection(Section):
    """The scorers, which verify every group: a process for each device that is named."""

    ray: Annotated[
        str,
        Field(
            pattern=r"^(auto|(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):\d{1,5})?$",
            examples=["192.168.1.7:6379"],
            description="Cluster of Ray whose hosts run the scorers: auto for that of this host, or HOST:PORT of its "
            "control service. scorer.devices then names a device without a number for each scorer, as "
            '["cuda", "cuda"], and Ray chooses its host and card. Its network must be private. Empty: no Ray.',
        ),
    ] = ""
    devices: Annotated[
        Literal["auto"] | tuple[str, ...],
        BeforeValidator(_devices),
        Field(
            examples=['["cuda:1", "cuda:2"]'],
            description="torch devices of the scorers, one scorer for each that is named: cuda:1 ... once, cpu as "
            "often as there are to be. auto: one scorer, on the learner's device.",
        ),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "float32"],
        Field(
            description="Precision of the passes over groups of 16-bit classes: auto is TF32 on NVIDIA cards from "
            "Ampere on, else float32. Groups of exact classes are scored in float32 in any case.",
        ),
    ] = "auto"
    silence_seconds: Annotated[
        float,
        Field(
            ge=1,
            le=86_400,
            description="Seconds without a sign from a scorer that has work, after which its process is ended as hung "
            "and started again; each such end doubles them, at most four times.",
        ),
    ] = 600.0

    @property
    def tf32(self) -> bool:
        """Whether groups of 16-bit classes may be scored in TF32."""
        return self.precision == "auto"

    @property
    def number(self) -> int:
        return 1 if self.devices == "auto" else len(self.devices)

    @property
    def own_number(self) -> int:
        """The number of scorers whose weights are on this machine's disk, and at least one: settings change."""
        return 1 if self.ray else self.number

    @property
    def own_devices(self) -> tuple[str, ...]:
        """The named devices of this machine; empty: none is named."""
        return () if self.devices == "auto" or self.ray else self.devices

    @property
    def ray_devices(self) -> tuple[str, ...]:
        """The kinds of the devices that Ray chooses, one for each scorer."""
        return self.devices if self.ray and self.devices != "auto" else ()

    @field_validator("devices")
    @classmethod
    def _check_devices(
        cls, devices: Literal["auto"] | tuple[str, ...], settings: ValidationInfo
    ) -> Literal["auto"] | tuple[str, ...]:
        if devices == "auto":
            return devices
        if "auto" in devices:
            raise ValueError("names auto among others: name each device, or set auto alone")
        if settings.data.get("ray"):
            if numbered := [device for device in devices if ":" in device]:
                raise ValueError(f"names {numbered[0]}, but Ray chooses the card: name it without its number")
            return devices
        cards = [card_of(device) for device in devices if device != "cpu"]
        twice = next((card for card in cards if cards.count(card) > 1), None)
        if twice is not None:
            raise ValueError(
                f"names {twice} twice, and two scorers on one card are no faster than one: name each card once"
            )
        return devices

    @model_validator(mode="after")
    def _names_devices_for_ray(self) -> Self:
        if self.ray and self.devices == "auto":
            raise ValueError('ray needs a device for each scorer: set scorer.devices = ["cuda", "cuda"]')
        return self


def card_of(device: str) -> str:
    """Return the full name of a card: cuda is cuda:0."""
    return device if ":" in device or device == "cpu" else f"{device}:0"
