"""What keeps a fault where it belongs: the guard, single errors out of groups, the pace of sending."""

import asyncio
import logging

import pytest

from p2p.errors import LocalNetworkFault, Malformed, P2PError, Unreachable
from p2p.guard import guarded, one_error
from p2p.limits.bandwidth import BURST, bandwidth


class FakeStream:
    resets = 0

    async def reset(self) -> None:
        self.resets += 1
        raise Unreachable("already gone")


FAULTS = {
    "a bug": (RuntimeError("bug"), logging.ERROR),
    "a peer's fault": (Malformed("bytes"), logging.INFO),
    "bad luck": (Unreachable("gone"), logging.DEBUG),
    "a group of bad luck": (ExceptionGroup("", [Unreachable("gone"), Unreachable("gone")]), logging.DEBUG),
    "a group with a peer's fault": (
        ExceptionGroup("", [Unreachable("gone"), ExceptionGroup("", [Malformed("x")])]),
        logging.INFO,
    ),
    "a group with a bug": (ExceptionGroup("", [Unreachable("gone"), KeyError("bug")]), logging.ERROR),
}


@pytest.mark.parametrize(("fault", "level"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_stays_inside_the_guard_and_resets_the_stream(fault, level, caplog):
    caplog.set_level(logging.DEBUG, "p2p")
    stream = FakeStream()

    async def handler(argument: object) -> None:
        raise fault

    assert await guarded(handler)(stream) is None
    assert stream.resets == 1
    assert [record.levelno for record in caplog.records if record.msg != "reset failed: %r"] == [level]


async def test_cancellation_passes_through_the_guard():
    async def handler(stream: object) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(guarded(handler)(FakeStream()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_in_a_group_with_faults_passes_through_and_the_faults_do_not():
    async def handler(stream: object) -> None:
        raise BaseExceptionGroup("", [KeyError("bug"), asyncio.CancelledError()])

    with pytest.raises(BaseExceptionGroup) as caught:
        await guarded(handler)(FakeStream())
    assert caught.value.split(asyncio.CancelledError)[1] is None


async def test_what_a_handler_returns_comes_through_the_guard_and_twice_is_once():
    async def handler(number: int) -> int:
        return number + 1

    safe = guarded(handler)
    assert await safe(1) == 2
    assert guarded(safe) is safe


RANKED = {
    "the peer's fault before bad luck": ([Unreachable("a"), Malformed("b")], "b"),
    "ours before the peer's": ([Malformed("a"), ExceptionGroup("", [LocalNetworkFault("b")])], "b"),
    "one alone": ([Unreachable("a")], "a"),
    "an unranked one last": ([P2PError("a"), Unreachable("b")], "b"),
}


@pytest.mark.parametrize(("errors", "told"), RANKED.values(), ids=RANKED.keys())
def test_one_error_stands_for_a_group(errors, told):
    with pytest.raises(P2PError) as caught, one_error():
        raise ExceptionGroup("", errors)
    assert str(caught.value) == told


def test_a_group_with_a_bug_is_not_made_smaller():
    with pytest.raises(ExceptionGroup), one_error():
        raise ExceptionGroup("", [Unreachable("a"), KeyError("bug")])


def test_a_single_error_is_left_alone():
    with pytest.raises(KeyError), one_error():
        raise KeyError("bug")


def test_sending_without_a_limit_never_waits():
    pace = bandwidth(None)
    pace.consume(1 << 40, 0.0)
    assert pace.delay(0, 0.0) == 0


def test_sending_under_a_limit_waits_as_long_as_the_rate_says():
    pace = bandwidth(1000.0)
    now, waited = 100.0, 0.0
    for _ in range(50):
        wait = pace.delay(0, now)
        now, waited = now + wait, waited + wait
        pace.consume(100, now)
    assert waited == pytest.approx(49 * 0.1 - BURST, abs=1e-6)


def test_a_pause_saves_no_more_than_the_burst():
    pace = bandwidth(1000.0)
    pace.consume(100, 0.0)
    waits = []
    for _ in range(4):
        waits.append(pace.delay(0, 1000.0))
        pace.consume(100, 1000.0)
    assert waits == pytest.approx([0, 0, 0, 0.3 - BURST])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="positive"):
        bandwidth(rate)
