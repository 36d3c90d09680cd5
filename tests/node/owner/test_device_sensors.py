"""Temperature, watts and memory of devices: by a stand-in of NVML, and by files like those of the kernel."""

from pathlib import Path
from typing import Any

import pytest

from echo2.node.owner.device_sensors import NOTHING_READ, DeviceReading, DeviceSensors
from echo2.node.owner.nvml import NvidiaCards


class Nvml:
    """NVML with these cards: name, degrees, milliwatts, bytes used and in all; None: that call fails."""

    def __init__(self, *cards: tuple[str, int | None, int | None, int, int]) -> None:
        self.cards = cards

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, card: Any) -> int:
        card._obj.value = number.value + 1
        return 0

    def nvmlDeviceGetName(self, card: Any, text: Any, length: Any) -> int:
        text.value = self.cards[card.value - 1][0].encode()
        return 0

    def nvmlDeviceGetTemperature(self, card: Any, sensor: Any, value: Any) -> int:
        return self._number(card, 1, value)

    def nvmlDeviceGetPowerUsage(self, card: Any, value: Any) -> int:
        return self._number(card, 2, value)

    def nvmlDeviceGetMemoryInfo(self, card: Any, memory: Any) -> int:
        memory._obj.used, memory._obj.total = self.cards[card.value - 1][3:]
        return 0

    def _number(self, card: Any, place: int, value: Any) -> int:
        known = self.cards[card.value - 1][place]
        if known is None:
            return 3
        value._obj.value = known
        return 0


def sensors(*cards: tuple[str, int | None, int | None, int, int], root: Path = Path("/nowhere")) -> DeviceSensors:
    return DeviceSensors(lambda: NvidiaCards(Nvml(*cards)), root)


def test_a_card_is_found_by_its_name_and_else_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    two = sensors(("NVIDIA RTX 3060", 50, 90_500, 1, 12), ("NVIDIA RTX 4090", 61, 212_000, 2, 24))
    assert two.read("cuda:0", "NVIDIA RTX 4090") == DeviceReading(61.0, 212.0, 2, 24), (
        "CUDA may number the fastest first"
    )
    assert two.read("vulkan:1", "RTX 3060") == DeviceReading(50.0, 90.5, 1, 12)
    alike = sensors(("RTX 3060", 50, 1000, 1, 12), ("RTX 3060", 70, 2000, 2, 12))
    assert alike.read("cuda:1", "RTX 3060").temperature == 70.0
    assert alike.read("cuda:2", "RTX 3060") == NOTHING_READ
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert alike.read("cuda:0", "RTX 3060").temperature == 70.0


def test_what_a_card_does_not_show_is_not_guessed() -> None:
    one = sensors(("RTX 3060", None, None, 1, 12))
    assert one.read("cuda:0", "RTX 3060") == DeviceReading(None, None, 1, 12)
    assert one.read("mps", "Apple M3") == NOTHING_READ


def test_a_machine_without_nvml_reads_the_kernel(tmp_path: Path) -> None:
    def missing() -> NvidiaCards:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    card = tmp_path / "sys/class/drm/card1/device"
    (card / "hwmon/hwmon3").mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002", "mem_info_vram_used": "7", "mem_info_vram_total": "16", "hwmon/hwmon3/temp1_input": "54000",
        "hwmon/hwmon3/power1_average": "88000000",
    }.items():  # fmt: skip
        (card / name).write_text(text + "\n")
    seen = DeviceSensors(missing, tmp_path)
    assert seen.read("rocm:0", "Radeon") == DeviceReading(54.0, 88.0, 7, 16)
    assert seen.read("rocm:1", "Radeon") == NOTHING_READ
    assert seen.read("cuda:0", "RTX 3060") == NOTHING_READ


def test_watts_of_a_processor_are_the_mean_between_two_reads(tmp_path: Path) -> None:
    counter = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"
    counter.parent.mkdir(parents=True)
    now = [10.0]
    seen = DeviceSensors(lambda: NvidiaCards(Nvml()), tmp_path, lambda: now[0])
    counter.write_text("1000000")
    first = seen.read("cpu", "a CPU")
    assert first.watts is None
    assert first.memory is not None
    now[0], _ = 14.0, counter.write_text("101000000")
    assert seen.read("cpu", "a CPU").watts == 25.0
    now[0], _ = 18.0, counter.write_text("5")
    assert seen.read("cpu", "a CPU").watts is None, "the counter began anew"
