"""What lives long is left out of full collections, and collected once it is garbage."""

import asyncio
import gc
import weakref

import pytest

from echo2.runtime import garbage


class Ring:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.own = self


async def test_what_is_alive_is_left_out_until_the_next_time_and_then_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "COLLECT_SECONDS", 0.0)
    ring = Ring()
    freed = weakref.ref(ring)
    task = asyncio.create_task(garbage.run())
    try:
        await asyncio.sleep(0)
        assert gc.get_freeze_count() > 0
        del ring
        gc.collect()
        assert freed() is not None, "it is left out"
        await asyncio.sleep(0)
        assert freed() is None
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert gc.get_freeze_count() == 0, "nothing is left out after its end"
