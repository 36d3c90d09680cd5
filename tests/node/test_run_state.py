"""The owner's switch: pauses, their end, and the end of every wait."""

import asyncio

import anyio
import pytest

from echo2.node.run_state import DeviceRunState, NodeRunState
from tests.support.clock import on_fake_clock, run_fake
from tests.support.fake_coordinator import wall


async def test_finishing_ends_every_wait() -> None:
    run_state = NodeRunState(lambda: 0)
    run_state.pause(None)
    waiting = asyncio.ensure_future(run_state.unless_finishing(run_state.until_resumed()))
    await asyncio.sleep(0)
    assert not waiting.done()
    run_state.finish("the test")
    await waiting


def test_a_pause_for_some_seconds_ends_by_itself_and_says_how_long_it_lasts() -> None:
    async def main() -> None:
        run_state = NodeRunState(wall)
        run_state.pause(90)
        assert run_state.paused
        assert run_state.idle
        assert run_state.why_paused == "paused by the owner for 90 s more"
        began = anyio.current_time()
        await run_state.until_resumed()
        assert 90 <= anyio.current_time() - began < 91
        assert not run_state.paused

    run_fake(main)


def test_a_pause_without_an_end_lasts_until_the_owner_resumes() -> None:
    async def main() -> None:
        run_state = NodeRunState(wall)
        run_state.pause(None)
        assert "until `echo2-node resume`" in run_state.why_paused
        with anyio.move_on_after(100_000) as waited:
            await run_state.until_resumed()
        assert waited.cancelled_caught
        run_state.resume()
        await run_state.until_resumed()
        assert not run_state.idle

    run_fake(main)


def test_the_first_reason_to_finish_is_kept() -> None:
    run_state = NodeRunState(lambda: 0)
    run_state.finish("the run is finished")
    run_state.finish("Ctrl-C")
    assert run_state.why_finishing == "the run is finished"
    assert run_state.idle
    assert not run_state.paused


async def test_a_wait_passes_on_the_error_of_what_it_waits_for() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await NodeRunState(lambda: 0).unless_finishing(fail())


@on_fake_clock
async def test_a_pause_that_is_given_an_end_later_ends_then() -> None:
    """A wait that had begun before went on for an hour."""
    run_state = NodeRunState(wall)
    run_state.pause(None)
    waiting = asyncio.ensure_future(run_state.until_resumed())
    await asyncio.sleep(1)
    run_state.pause(10)
    async with asyncio.timeout(11):
        await waiting


def test_a_pause_says_when_it_ends_at_the_earliest() -> None:
    run_state = NodeRunState(lambda: 1000)
    assert run_state.rests_until == 1000
    run_state.give_way("steam is running", 60.0)
    assert run_state.rests_until == 61_000
    run_state.pause(100)
    assert run_state.rests_until == 101_000
    run_state.resume()
    assert run_state.paused, "no rule was asked to step back"
    run_state.give_way("", 0.0)
    assert not run_state.paused


def test_a_device_rests_for_itself_and_with_its_node() -> None:
    async def main() -> None:
        node = NodeRunState(wall)
        one, other = DeviceRunState(node), DeviceRunState(node)
        one.pause(60)
        assert (one.paused, other.paused, node.paused) == (True, False, False)
        node.pause(30)
        assert other.why_paused == "paused by the owner for 30 s more"
        began = anyio.current_time()
        await other.until_resumed()
        assert 30 <= anyio.current_time() - began < 31
        assert (one.paused, node.paused) == (True, False)
        await one.until_resumed()
        assert 60 <= anyio.current_time() - began < 61
        one.pause(None)
        node.resume()
        assert not one.paused
        one.finish("the run is finished")
        assert other.finishing
        assert node.why_finishing == "the run is finished"

    run_fake(main)


def test_a_node_that_gives_way_takes_its_devices_along() -> None:
    node = NodeRunState(lambda: 0)
    device = DeviceRunState(node)
    node.give_way("a program runs", 60)
    device.give_way("it is hot", 5)
    assert (device.paused, device.why_paused) == (True, "a program runs")
    node.give_way("", 0)
    assert (device.paused, device.why_paused) == (True, "it is hot")
    device.give_way("", 0)
    assert not device.paused
