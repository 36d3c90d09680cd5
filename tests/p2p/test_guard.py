"""Faults stay inside their stream: the guard of handlers, and single errors out of groups."""

import asyncio
import logging

import pytest

from echo2.p2p.errors import LocalNetworkFault, Malformed, P2PError, Unreachable
from echo2.p2p.guard import guard_handler, one_error


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

    assert await guard_handler(handler)(stream) is None
    assert stream.resets == 1
    assert [record.levelno for record in caplog.records if record.msg != "reset failed: %r"] == [level]


async def test_cancellation_passes_through_the_guard():
    async def handler(stream: object) -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(guard_handler(handler)(FakeStream()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_in_a_group_with_faults_passes_through_and_the_faults_do_not():
    async def handler(stream: object) -> None:
        raise BaseExceptionGroup("", [KeyError("bug"), asyncio.CancelledError()])

    with pytest.raises(BaseExceptionGroup) as caught:
        await guard_handler(handler)(FakeStream())
    assert caught.value.split(asyncio.CancelledError)[1] is None


async def test_a_handlers_result_passes_the_guard_and_guarding_twice_changes_nothing():
    async def handler(number: int) -> int:
        return number + 1

    safe = guard_handler(handler)
    assert await safe(1) == 2
    assert guard_handler(safe) is safe


RANKED = {
    "the peer's fault before bad luck": ([Unreachable("a"), Malformed("b")], "b"),
    "ours before the peer's": ([Malformed("a"), ExceptionGroup("", [LocalNetworkFault("b")])], "b"),
    "one alone": ([Unreachable("a")], "a"),
    "an unranked one last": ([P2PError("a"), Unreachable("b")], "b"),
}


@pytest.mark.parametrize(("errors", "told"), RANKED.values(), ids=RANKED.keys())
def test_one_error_is_raised_in_place_of_a_group(errors, told):
    with pytest.raises(P2PError) as caught, one_error():
        raise ExceptionGroup("", errors)
    assert str(caught.value) == told


def test_a_group_with_a_bug_passes_unchanged():
    with pytest.raises(ExceptionGroup), one_error():
        raise ExceptionGroup("", [Unreachable("a"), KeyError("bug")])


def test_a_single_error_passes_unchanged():
    with pytest.raises(KeyError), one_error():
        raise KeyError("bug")
