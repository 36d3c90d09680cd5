import anyio
import pytest

from echo2.p2p.libp2p.gossip_dedup import CACHED_MESSAGES, ValidationCache


async def test_copies_that_arrive_during_validation_wait_for_its_verdict():
    once, go, verdicts, calls = ValidationCache(), anyio.Event(), [], []

    async def handler() -> bool:
        calls.append(1)
        await go.wait()
        return True

    async def copy() -> None:
        verdicts.append(await once.validate(b"id", b"id", handler))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(copy)
        await anyio.wait_all_tasks_blocked()
        assert (calls, verdicts) == ([1], [])
        go.set()
    assert (calls, verdicts) == ([1], [True, True, True])


async def test_a_refused_message_stays_refused_and_another_is_validated():
    once = ValidationCache()

    async def bad() -> bool:
        return False

    async def good() -> bool:
        return True

    assert not await once.validate(b"a", b"a", bad)
    assert not await once.validate(b"a", b"a", good)
    assert await once.validate(b"b", b"b", good)


async def test_a_failing_handler_leaves_no_copy_waiting():
    once = ValidationCache()

    async def broken() -> bool:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await once.validate(b"a", b"a", broken)
    assert not await once.validate(b"a", b"a", broken)


async def test_the_number_of_remembered_verdicts_is_bounded():
    once, calls = ValidationCache(), []

    async def handler() -> bool:
        calls.append(1)
        return True

    for number in range(CACHED_MESSAGES + 1):
        await once.validate(b"%d" % number, b"%d" % number, handler)
    await once.validate(b"%d" % CACHED_MESSAGES, b"%d" % CACHED_MESSAGES, handler)
    assert len(calls) == CACHED_MESSAGES + 1
    await once.validate(b"0", b"0", handler)
    assert len(calls) == CACHED_MESSAGES + 2


async def test_repeated_content_under_a_new_id_is_handled_and_not_forwarded():
    once, calls = ValidationCache(), 0

    async def handler() -> bool:
        nonlocal calls
        calls += 1
        return True

    assert await once.validate(b"first", b"a head", handler)
    assert not await once.validate(b"second", b"a head", handler)
    assert not await once.validate(b"second", b"a head", handler)
    assert await once.validate(b"third", b"another head", handler)
    assert calls == 3
