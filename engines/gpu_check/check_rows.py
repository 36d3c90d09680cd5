"""Rows of the check: what was measured, its goal, and what to do where it falls short. Pure.

Rules
1. A goal follows from the card itself: its data sheet (known_cards.py), or what its memory was measured to do. Where
   neither is known, and on a CPU, a figure has no goal.
2. What could not be measured has a row all the same, with the reason.
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


def measured_rows(measurements: Sequence[Measurement], vllm: str) -> list[CheckRow]:
    """Return the rows of a device's measurements. `vllm`: the command that installs vLLM, empty: it is installed."""
    return _Device({one.name: one for one in measurements}, vllm).rows()


class _Device:
    def __init__(self, seen: Mapping[str, Measurement], vllm: str) -> None:
        self._seen = seen
        self._vllm = f"install vLLM, {vllm}, and join with --engine vllm" if vllm else "join with --engine vllm"
        kind = seen["device"].words.partition(":")[0] if "device" in seen else ""
        self._gpu = kind not in ("", "cpu")
        name = seen["name"].words if "name" in seen else ""
        self._peaks = PEAKS.get(name, Peaks(0, 0, 0, 0)) if self._gpu else Peaks(0, 0, 0, 0)

    def rows(self) -> list[CheckRow]:
        """Return the rows, in the order of the table."""
        peaks = self._peaks
        return [
            self._words("device", "name"),
            self._words("PyTorch", "torch"),
            self._memory(),
            self._at_least("memory bandwidth", "bandwidth", 1e9, "GB/s", MEMORY_SHARE * peaks.memory, _BUSY),
            self._product("bfloat16", peaks.bfloat16),
            self._product("tf32", peaks.tf32),
            self._product("float32", peaks.float32),
            self._at_least(
                "copies from the host", "upload", 1e9, "GB/s", LEAST_UPLOAD / 1e9 if self._gpu else 0,
                "the card's slot has few lanes: versions load slowly, generating is as fast as ever",
            ),
            self._step("choice of tokens", "choice", CHOICE_FACTOR * self._by_memory("choice_bytes"),
                       "the program in front of the card is the brake: more rows at a time gain (--rows)"),
            self._step("decode step", "decode", DECODE_FACTOR * self._by_memory("decode_bytes"), self._vllm),
            self._rate("decode", "decode_rate"),
            self._waits(),
            self._scorer(),
        ]  # fmt: skip

    def _value(self, name: str) -> float:
        one = self._seen.get(name)
        return 0.0 if one is None or one.fault else one.value

    def _by_memory(self, name: str) -> float:
        """Return the seconds that the card's memory needs for so many bytes; 0: not known (rule 1)."""
        bandwidth = self._value("bandwidth")
        return self._value(name) / bandwidth if bandwidth and self._gpu else 0.0

    def _unseen(self, what: str, name: str) -> CheckRow | None:
        """Return the row of what was not measured (rule 2); None: it was."""
        one = self._seen.get(name)
        if one is not None and not one.fault:
            return None
        reason = "the time was used up before it" if one is None else one.fault
        return CheckRow(what=what, value="", verdict=UNSEEN, remedy=reason)

    def _words(self, what: str, name: str) -> CheckRow:
        return self._unseen(what, name) or CheckRow(what=what, value=self._seen[name].words)

    def _at_least(self, what: str, name: str, unit: float, noun: str, goal: float, remedy: str) -> CheckRow:
        """Return the row of a figure that should reach `goal`, in units; 0: it has none."""
        if (unseen := self._unseen(what, name)) is not None:
            return unseen
        value = self._value(name) / unit
        good = not goal or value >= goal
        return CheckRow(
            what=what, value=f"{figure(value)} {noun}", goal=f"at least {figure(goal)} {noun}" if goal else "",
            verdict=("ok" if good else "short") if goal else "", remedy="" if good else remedy,
        )  # fmt: skip

    def _product(self, name: str, peak: float) -> CheckRow:
        what = f"product of matrices, {name}"
        row = self._at_least(what, f"product_{name}", 1e12, "TFLOP/s", PRODUCT_SHARE * peak, _BUSY)
        if not peak or row.verdict == UNSEEN:
            return row
        share = self._value(f"product_{name}") / (1e12 * peak)
        return msgspec.structs.replace(row, value=f"{row.value}, {100 * share:.0f} % of the card's")

    def _memory(self) -> CheckRow:
        if (unseen := self._unseen("free memory", "free")) is not None:
            return unseen
        free, total = self._value("free"), self._value("total")
        if not total or not self._gpu:
            return CheckRow(what="free memory", value=f"{figure(free / 2**30)} GiB")
        good = free >= FREE_SHARE * total
        remedy = f"other programs hold {figure((total - free) / 2**30)} GiB: close them"
        return CheckRow(
            what="free memory", value=f"{figure(free / 2**30)} of {figure(total / 2**30)} GiB", goal="at least 90 %",
            verdict="ok" if good else "short", remedy="" if good else remedy,
        )  # fmt: skip

    def _step(self, what: str, name: str, most: float, remedy: str) -> CheckRow:
        """Return the row of a step's seconds, at most `most`; 0: it has no goal."""
        if (unseen := self._unseen(what, name)) is not None:
            return unseen
        seconds = self._value(name)
        good = not most or seconds <= most
        return CheckRow(
            what=f"{what}, {self._seen[name].words}", value=f"{figure(1e3 * seconds)} ms",
            goal=f"at most {figure(1e3 * most)} ms" if most else "",
            verdict=("ok" if good else "short") if most else "", remedy="" if good else remedy,
        )  # fmt: skip

    def _rate(self, what: str, name: str) -> CheckRow:
        unseen = self._unseen(what, name)
        return unseen or CheckRow(
            what=f"{what}, {self._seen[name].words}", value=f"{figure(self._value(name))} tokens/s"
        )

    def _waits(self) -> CheckRow:
        what = "waits for the card per step"
        if (unseen := self._unseen(what, "waits")) is not None:
            return unseen
        value = self._value("waits")
        good = value == 0
        remedy = "" if good else "a fault of echo2: attach this table to a report"
        return CheckRow(
            what=what, value=figure(value), goal="0", verdict="ok" if good else "short", remedy=remedy
        )  # fmt: skip

    def _scorer(self) -> CheckRow:
        """Return the row of a checking pass: by the products that it makes, beside those of the card in float32."""
        flops, rate = self._value("scorer_flops"), self._value("product_float32")
        goal = SCORER_SHARE * rate / flops if flops and self._gpu else 0.0
        remedy = "only an operator's scorer is slow by it: attach this table to a report"
        return self._at_least("checking pass, float32", "scorer", 1, "tokens/s", goal, remedy)


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
