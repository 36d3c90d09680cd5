"""Places that one caller uses at a time: who gets the next free one, and those set apart."""

import asyncio

from echo2.coordinator.environments.worker_places import Places


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


async def order_of(places: Places[str], *, usual: int, aside: int) -> list[str]:
    """Take the only place, let callers wait for it, and return the order in which they get it."""
    place, order = await places.take(), list[str]()

    async def call(name: str, *, aside: bool) -> None:
        taken = await places.take(aside=aside)
        order.append(name)
        places.give(taken)

    names = [f"aside {number}" for number in range(aside)] + [f"usual {number}" for number in range(usual)]
    calls = [asyncio.create_task(call(name, aside=name.startswith("aside"))) for name in names]
    await asyncio.sleep(0)
    places.give(place)
    await asyncio.gather(*calls)
    return order


async def test_an_evaluation_with_many_calls_delays_others_by_one_call_each() -> None:
    order = await order_of(Places(["a"]), usual=3, aside=100)
    assert [order.index(f"usual {number}") for number in range(3)] == [0, 2, 4]


async def test_many_other_calls_do_not_starve_an_evaluation() -> None:
    order = await order_of(Places(["a"]), usual=100, aside=3)
    assert [order.index(f"aside {number}") for number in range(3)] == [1, 3, 5]


async def test_of_the_free_places_the_one_with_the_least_load_is_taken_and_of_equals_the_last_one_given_back() -> None:
    load = {"a": 2, "b": 1, "c": 1}
    places = Places(list(load), load=lambda place: load[place])
    assert [await places.take() for _ in range(3)] == ["c", "b", "a"]


async def test_a_caller_that_gives_up_leaves_its_turn_to_the_next() -> None:
    places = Places(["a"])
    place = await places.take()
    gone, next_one = asyncio.create_task(places.take()), asyncio.create_task(places.take(aside=True))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    places.give(place)
    assert await next_one == "a"
