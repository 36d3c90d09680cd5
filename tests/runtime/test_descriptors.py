"""The limit of open files: raised at start, divided among connections, and met without harm."""

import errno
import logging
import os
import subprocess
import sys

import pytest

from echo2.runtime.descriptors import RESERVED_DESCRIPTORS, Shortages, fit_connections, raise_limit
from echo2.runtime.log_throttle import THROTTLE_SECONDS

PRINT = "from echo2.runtime.descriptors import raise_limit; print(raise_limit())"


def under(shell: str, most: str = "") -> str:
    """Return the result of `raise_limit` in a process that was started under a limit."""
    command = f"{shell}; exec '{sys.executable}' -c '{PRINT.replace('raise_limit()', f'raise_limit({most})')}'"
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout.strip()


def test_a_soft_limit_is_raised_to_the_hard_one() -> None:
    assert under("ulimit -S -n 256; ulimit -H -n 900") == "900"


def test_a_hard_limit_stays() -> None:
    assert under("ulimit -n 256") == "256"


def test_a_limit_is_raised_no_further_than_asked() -> None:
    assert under("ulimit -S -n 256; ulimit -H -n 900", "500") == "500"


def test_a_system_that_refuses_its_own_hard_limit_is_asked_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS the hard limit is infinite, but the system accepts at most OPEN_MAX."""
    took = []

    def set_limit(kind: int, limits: tuple[int, int]) -> None:
        if limits[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        took.append(limits)

    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, -1))
    monkeypatch.setattr("resource.setrlimit", set_limit)
    assert raise_limit() == 10_240
    assert took == [(10_240, -1)]


@pytest.mark.parametrize(
    ("limit", "wanted", "fits"),
    {
        "all of them": (65_536, (1024, 1024), (1024, 1024)),
        "just": (RESERVED_DESCRIPTORS + 300, (200, 100), (200, 100)),
        "in proportion": (RESERVED_DESCRIPTORS + 96, (1024, 512), (64, 32)),
        "one at least": (64, (1024, 2), (1, 1)),
    }.values(),
)
def test_connections_are_fitted_to_the_limit(limit: int, wanted: tuple[int, ...], fits: tuple[int, ...]) -> None:
    assert fit_connections(limit, *wanted) == fits


def test_shortages_are_counted_each_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    shortages = Shortages(lambda: now)
    for _ in range(100):
        shortages.count_failure("opening a file")
    assert shortages.count == 100
    assert caplog.text.count("no descriptor is free") == 1
    now = THROTTLE_SECONDS
    shortages.count_failure("opening a file")
    assert "100 times since" in caplog.text


def test_a_shortage_that_a_library_reports_is_counted_and_other_reports_pass() -> None:
    shortages = Shortages()
    logger = logging.getLogger("tests.accepting")
    logger.addFilter(shortages)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    for number in (errno.EMFILE, errno.ECONNABORTED):
        try:
            raise OSError(number, os.strerror(number))
        except OSError:
            logger.exception("accept returned %d", number)
    assert shortages.count == 1
    assert heard == [f"accept returned {errno.ECONNABORTED}"]
