"""The ground of every test: one torch thread, no hub, nothing of the owner's settings, the same examples each time."""

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from echo2.runtime import memory_folder
from tests.support.paths import ROOT

# Before anything imports torch or transformers, here or in a child process.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HF_HUB_OFFLINE"] = "1"

# A background job of a script ignores Ctrl-C, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every machine and every run; `deadline` would measure the neighbours on a shared core.
settings.register_profile(
    "echo2", derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("echo2")

SLOW = 900
"""Seconds that a slow test may take, unless it says otherwise; only a test that hangs takes so long."""

XDG_FOLDERS = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")


@pytest.hookimpl(tryfirst=True)  # before pytest drops what `-m "not slow"` leaves out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow cases of tests whose other cases are quick (`slow_for`, `slow_but`), and give slow tests a limit of
    their own; that of pyproject.toml is for the others. Raises `UsageError` for the name of a case that is not there,
    unless single cases were asked for."""
    unknown: dict[tuple[str, str], set[str]] = {}
    for item in items:
        test, _, case = item.nodeid.partition("[")
        for kind in ("slow_for", "slow_but"):
            if (mark := item.get_closest_marker(kind)) is not None:
                unknown.setdefault((kind, test), set(mark.args)).discard(case[:-1])
                if (case[:-1] in mark.args) == (kind == "slow_for"):
                    item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))
    whole = not any("::" in word for word in config.args)
    if whole and (wrong := [f"{test}: {kind} {names}" for (kind, test), names in unknown.items() if names]):
        raise pytest.UsageError("no such case: " + "; ".join(wrong))


@pytest.fixture(autouse=True)
def _clean_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own identity, configuration and proxies out of every test, and unchanged."""
    home = tmp_path_factory.mktemp("home")
    for name in XDG_FOLDERS:
        monkeypatch.setenv(name, str(home / name.lower()))
    monkeypatch.setenv("HOME", str(home))
    for name in list(os.environ):
        if name.startswith("ECHO2_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _memory_of_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove what nodes of these tests leave in the machine's memory: a killed one cannot."""
    yield
    base = tmp_path_factory.getbasetemp().resolve()
    for path in memory_folder.MEMORY_ROOT.glob(f"echo2-{os.getuid()}-*/{memory_folder.PATH_FILE}"):
        if base in Path(path.read_text()).parents:
            shutil.rmtree(path.parent)


@pytest.fixture(autouse=True)
def _log_settings() -> Iterator[None]:
    """Put the settings of the log back: a benchmark or `doctor` in this process silences what later tests read."""
    before, loggers = structlog.get_config(), [logging.getLogger(), logging.getLogger("p2p")]
    levels = [logger.level for logger in loggers]
    yield
    structlog.configure(**before)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT
