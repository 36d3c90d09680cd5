"""Places that one caller uses at a time, and those set apart."""

import asyncio

from coordinator.environments.worker_places import Places


async def test_a_place_that_is_set_apart_is_taken_last() -> None:
    places = Places(["a", "b", "c"], apart=["a"])
    assert [await places.take() for _ in range(3)] == ["c", "b", "a"]
    for place in ("b", "a"):
        places.give(place)
    assert [await places.take() for _ in range(2)] == ["b", "a"]


async def test_a_place_that_is_wanted_is_waited_for() -> None:
    places = Places(["a", "b"], apart=["a"])
    assert await places.take("a") == "a"
    waits = asyncio.create_task(places.take("a"))
    await asyncio.sleep(0)
    assert await places.take() == "b"
    places.give("b")
    assert not waits.done()
    places.give("a")
    assert await waits == "a"
