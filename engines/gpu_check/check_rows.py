"""Rows of the check: what was measured, its goal, and what to do where it falls short. Pure.

Rules
1. A goal follows from the card itself: its data sheet (known_cards.py), or what its memory was measured to do. Where
   neither is known, and on a CPU, a figure has no goal.
2. A figure that could not be measured has a row all the same, with the reason.
3. A table for a file or another program has no path and no name of this host: the reasons of libraries may have them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from echo2.engines.gpu_check.known_cards import PEAKS, Peaks
from echo2.runtime.figures import figure

UNSEEN: Final = "cannot be seen here"
MEMORY_SHARE, PRODUCT_SHARE, SCORER_SHARE, FREE_SHARE = 0.75, 0.6, 0.4, 0.9
"""Parts of a peak, or of the card's memory, that a row should reach."""
CHOICE_FACTOR, DECODE_FACTOR = 2.0, 3.0
"""By how much a step may exceed the time that the card's memory needs for it."""
LEAST_UPLOAD: Final = 6e9
"""Bytes per second: half of what a slot of 16 lanes of PCIe 3 does."""
_PATH: Final = re.compile(r"(?:(?<![\w/])~?/|\b[A-Za-z]:\\)[^\s'\",:;()]+")
_BUSY: Final = "another program uses the card, or heat or a power cap slows it: nvidia-smi shows each"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, or words, of the device. `fault`: why there is none, or empty."""

    name: str
    value: float = 0.0
    words: str = ""
    fault: str = ""


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """`what`: the name of the row. `goal`: empty where there is none. `verdict`: ok, short, empty, or `UNSEEN`.
    `remedy`: what to do, or empty."""

    what: str
    value: str
    goal: str = ""
    verdict: str = ""
    remedy: str = ""


def measured_rows(measurements: Sequence[Measurement], vllm: str, fault: str = "") -> list[CheckRow]:
    """Return the rows of a device's measurements. `vllm`: the command that installs vLLM, empty: it is installed.
    `fault`: why some were not made, empty: the time was used up."""
    return _Device({one.name: one for one in measurements}, vllm, fault).rows()


class _Device:
    def __init__(self, seen: Mapping[str, Measurement], vllm: str, fault: str) -> None:
        self._seen, self._fault = seen, fault or "the time was used up before it"
        self._vllm = f"install vLLM, {vllm}, and join with --engine vllm" if vllm else "join with --engine vllm"
        kind = seen["device"].words.partition(":")[0] if "device" in seen else ""
        self._gpu = kind not in ("", "cpu")
        name = seen["name"].words if "name" in seen and self._gpu else ""
        self._peaks = PEAKS.get(name, Peaks(0, 0, 0, 0))

    def rows(self) -> list[CheckRow]:
        """Return the rows, in the order of the table."""
        peaks, slot = self._peaks, LEAST_UPLOAD / 1e9 if self._gpu else 0
        few_lanes = "the card's slot has few lanes: versions load slowly, generating is as fast as ever"
        in_front = "the program in front of the card is the brake: more rows at a time gain (--rows)"
        return [
            self._unseen("device", "name") or CheckRow(what="device", value=self._seen["name"].words),
            self._unseen("PyTorch", "torch") or CheckRow(what="PyTorch", value=self._seen["torch"].words),
            self._memory(),
            self._at_least("memory bandwidth", "bandwidth", 1e9, "GB/s", MEMORY_SHARE * peaks.memory, _BUSY),
            self._product("bfloat16", peaks.bfloat16),
            self._product("tf32", peaks.tf32),
            self._product("float32", peaks.float32),
            self._at_least("copies from the host", "upload", 1e9, "GB/s", slot, few_lanes),
            self._step("choice of tokens", "choice", CHOICE_FACTOR, in_front),
            self._step("decode step", "decode", DECODE_FACTOR, self._vllm),
            self._waits(),
            self._scorer("float32", "scorer"),
            self._scorer("tf32", "scorer_tf32"),
        ]

    def _value(self, name: str) -> float:
        one = self._seen.get(name)
        return 0.0 if one is None or one.fault else one.value

    def _unseen(self, what: str, name: str) -> CheckRow | None:
        """Return the row of what was not measured (rule 2); None: it was."""
        one = self._seen.get(name)
        if one is not None and not one.fault:
            return None
        return CheckRow(what=what, value="", verdict=UNSEEN, remedy=self._fault if one is None else one.fault)

    def _at_least(self, what: str, name: str, unit: float, noun: str, goal: float, remedy: str) -> CheckRow:
        """Return the row of a figure that should reach `goal`, in units; 0: it has none."""
        value = self._value(name) / unit
        text = f"at least {figure(goal)} {noun}" if goal else ""
        return self._unseen(what, name) or _row_of(what, f"{figure(value)} {noun}", text, value >= goal, remedy)

    def _product(self, name: str, peak: float) -> CheckRow:
        what = f"product of matrices, {name}"
        row = self._at_least(what, f"product_{name}", 1e12, "TFLOP/s", PRODUCT_SHARE * peak, _BUSY)
        if not peak or row.verdict == UNSEEN:
            return row
        share = self._value(f"product_{name}") / (1e12 * peak)
        return msgspec.structs.replace(row, value=f"{row.value}, {100 * share:.0f} % of the card's")

    def _memory(self) -> CheckRow:
        free, total = self._value("free"), self._value("total") if self._gpu else 0
        of = f" of {figure(total / 2**30)}" if total else ""
        remedy = f"other programs hold {figure((total - free) / 2**30)} GiB: close them"
        return self._unseen("free memory", "free") or _row_of(
            "free memory", f"{figure(free / 2**30)}{of} GiB", f"at least {100 * FREE_SHARE:.0f} %" if total else "",
            free >= FREE_SHARE * total, remedy,
        )  # fmt: skip

    def _step(self, what: str, name: str, factor: float, remedy: str) -> CheckRow:
        """Return the row of a step, whose time should be at most `factor` times that which its memory needs."""
        if (unseen := self._unseen(what, name)) is not None:
            return unseen
        seconds, bandwidth = self._value(name), self._value("bandwidth")
        most = factor * self._value(f"{name}_bytes") / bandwidth if bandwidth and self._gpu else 0.0
        goal = f"at most {figure(1e3 * most)} ms" if most else ""
        words = self._seen[name].words
        return _row_of(f"{what}, {words}", f"{figure(1e3 * seconds)} ms", goal, seconds <= most, remedy)

    def _waits(self) -> CheckRow:
        what, value = "waits for the card per step", self._value("waits")
        remedy = "a fault of echo2: attach this table to a report"
        return self._unseen(what, "waits") or _row_of(what, figure(value), "0", value == 0, remedy)

    def _scorer(self, precision: str, name: str) -> CheckRow:
        """Return the row of a checking pass: by the products that it makes, beside those of the card so precise."""
        flops, rate = self._value("scorer_flops"), self._value(f"product_{precision}")
        goal = SCORER_SHARE * rate / flops if flops and self._gpu else 0.0
        remedy = "only an operator's scorer is slow by it: attach this table to a report"
        return self._at_least(f"checking pass, {precision}", name, 1, "tokens/s", goal, remedy)


def _row_of(what: str, value: str, goal: str, good: bool, remedy: str) -> CheckRow:
    """Return the row of a figure. `goal`: empty: it has none. `good`: whether it is reached."""
    verdict = ("ok" if good else "short") if goal else ""
    return CheckRow(what=what, value=value, goal=goal, verdict=verdict, remedy=remedy if verdict == "short" else "")


def text_of(rows: Sequence[CheckRow]) -> list[str]:
    """Return a table, and what to do below it."""
    cells = [("", "measured", "goal", "verdict"), *((one.what, one.value, one.goal, one.verdict) for one in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    remedies = [f"{one.what}: {one.remedy}" for one in rows if one.remedy]
    return table + (["", *remedies] if remedies else [])


def without_places(rows: Sequence[CheckRow], host: str) -> list[CheckRow]:
    """Return rows for others (rule 3). `host`: the name of this host."""

    def clean(text: str) -> str:
        text = _PATH.sub("(path)", text)
        return re.sub(rf"\b{re.escape(host)}\b", "(host)", text) if host else text

    return [
        CheckRow(what=clean(one.what), value=clean(one.value), goal=one.goal, verdict=one.verdict,
                 remedy=clean(one.remedy))
        for one in rows
    ]  # fmt: skip
