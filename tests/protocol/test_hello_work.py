"""The work of a first hello holds for one key, one run and two hours, and is cheap to check."""

import json
import time
from pathlib import Path

import pytest

from echo2.protocol import hello_work
from echo2.protocol.hello_work import SIZE, compute, hour_of, is_shown

RUN, KEY = bytes(range(32)), b"k" * 32
HOUR = 480_000
NOW = HOUR * 3_600_000 + 1_234_567


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello_work, "BITS", 10)


def test_the_work_of_an_hour_is_valid_in_that_hour_and_the_next(light: None) -> None:
    work = compute(RUN, KEY, HOUR)
    assert work is not None
    assert len(work) == SIZE
    assert hour_of(NOW) == HOUR
    assert is_shown(RUN, KEY, work, NOW)
    assert is_shown(RUN, KEY, work, NOW + 3_600_000)
    assert not is_shown(RUN, KEY, work, NOW + 2 * 3_600_000)
    assert not is_shown(RUN, KEY, work, NOW - 3_600_000)
    assert not is_shown(RUN, KEY, work, 0)


def test_the_work_is_of_one_key_and_one_run(light: None) -> None:
    work = compute(RUN, KEY, HOUR)
    assert work is not None
    assert not is_shown(RUN, b"l" * 32, work, NOW)
    assert not is_shown(b"r" * 32, KEY, work, NOW)


@pytest.mark.parametrize("work", [None, b"", b"\0", bytes(7), bytes(9), bytes(64)])
def test_other_bytes_are_no_work(work: bytes | None) -> None:
    assert not is_shown(RUN, KEY, work, NOW)


def test_twenty_bits_are_asked_and_known_work_is_known(repository: Path) -> None:
    known = json.loads((repository / "tests/vectors/hello_work.json").read_text())
    run, key, work = (bytes.fromhex(known[name]) for name in ("run", "key", "work"))
    assert hello_work.BITS == 20
    assert is_shown(run, key, work, known["hour"] * 3_600_000)
    assert not is_shown(run, key, bytes(8), known["hour"] * 3_600_000)


def test_the_search_stops_when_it_is_told() -> None:
    assert compute(RUN, KEY, HOUR, lambda: True) is None


def test_a_check_costs_microseconds() -> None:
    began = time.process_time()
    for number in range(1_000):
        is_shown(RUN, KEY, number.to_bytes(8), NOW)
    assert time.process_time() - began < 0.2
