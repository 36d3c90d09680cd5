"""The owner's switch: pauses, their end, and the end of every wait."""

import asyncio

from node.run_state import NodeRunState


async def test_finishing_ends_every_wait() -> None:
    switch = NodeRunState(lambda: 0)
    switch.pause(None)
    waiting = asyncio.ensure_future(switch.unless_finishing(switch.until_resumed()))
    await asyncio.sleep(0)
    assert not waiting.done()
    switch.finish("the test")
    await waiting
