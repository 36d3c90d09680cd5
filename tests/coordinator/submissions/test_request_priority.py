"""Under overload, requests that complete work go first, and lease requests beyond a bound are refused unread."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.submissions.request_priority import (
    BURST_REQUESTS,
    LATEST_RETRY_MS,
    MOST_UNANSWERED,
    OVERLOAD_MEMORY_MS,
    PER_ITERATION,
    RETRIES_PER_SECOND,
    RETRY_STEP_MS,
    SOONEST_RETRY_MS,
    STANDING_OVERLOAD_MS,
    AdmissionQueue,
)
from echo2.p2p.handlers import Handlers
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode
from echo2.protocol.requests import Response
from tests.support.group_world import World, control_of


async def test_submissions_go_before_earlier_lease_requests_and_no_iteration_answers_too_many() -> None:
    queue, served = AdmissionQueue(lambda: 0, lambda: 0), list[str]()

    async def request(method: str) -> None:
        assert await queue.enter(method, "node") is None
        served.append(method)

    asks = [asyncio.create_task(request("lease")) for _ in range(PER_ITERATION + 20)]
    groups = [asyncio.create_task(request("submit")) for _ in range(5)]
    per_iteration = list[int]()
    while len(served) < len(asks) + len(groups):
        before = len(served)
        await asyncio.sleep(0)
        per_iteration.append(len(served) - before)
    assert max(per_iteration) <= PER_ITERATION
    assert served == ["lease"] * PER_ITERATION + ["submit"] * 5 + ["lease"] * 20


async def test_a_cancelled_request_delays_no_other() -> None:
    queue = AdmissionQueue(lambda: 0, lambda: 0)
    tasks = [asyncio.create_task(queue.enter("lease", "node")) for _ in range(2 * PER_ITERATION)]
    await asyncio.sleep(0)
    for task in tasks[PER_ITERATION:-1]:
        task.cancel()
    assert await tasks[-1] is None


class Connection(Handlers):
    """Requests that wait in a queue. `waiting`: requests by method."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Counter[str]()

    def count_unanswered(self, methods: Sequence[str]) -> int:
        return sum(self.waiting[method] for method in methods)


def at_home(peer: str) -> Origin:
    return Origin(peer, peer)


async def test_a_lease_request_beyond_the_bound_is_refused_unread_and_may_be_retried(world: World) -> None:
    connection = Connection()
    control_of(world, RequestHandler).serve(connection, at_home)
    for unanswered, code, again in (
        (BURST_REQUESTS, "malformed", None),
        (BURST_REQUESTS + 1, "busy", SOONEST_RETRY_MS),
    ):
        connection.waiting["submit"] = unanswered
        refusal = decode(await connection.methods["lease"].handler("peer", b"no request at all"), Response).refusal
        assert (refusal.code, refusal.retry_after) == (code, again)


async def test_nodes_that_wait_for_their_place_in_the_plan_are_no_overload(world: World) -> None:
    """A request for the plan waits on purpose, for a second and more, at no cost to its node. If it counted, a few
    hundred of them would keep all nodes from a lease."""
    connection = Connection()
    control_of(world, RequestHandler).serve(connection, at_home)
    connection.waiting["plan"] = 10 * BURST_REQUESTS
    refusal = decode(await connection.methods["lease"].handler("peer", b"no request at all"), Response).refusal
    assert refusal.code == "malformed"


async def test_a_submission_is_read_however_many_requests_are_unanswered(world: World) -> None:
    connection = Connection()
    control_of(world, RequestHandler).serve(connection, at_home)
    connection.waiting["submit"] = 10 * BURST_REQUESTS
    refusal = decode(await connection.methods["submit"].handler("peer", b"no request at all"), Response).refusal
    assert refusal.code == "malformed"


async def test_refused_nodes_retry_one_after_the_other() -> None:
    """Refusing 1,000 nodes costs `RETRIES` requests per second, not 200, and no node waits longer than `LATEST`."""
    now = 0
    queue = AdmissionQueue(lambda: now, lambda: BURST_REQUESTS + 1)
    due = [await queue.enter("lease", "node") for _ in range(1_000)]
    assert due == [SOONEST_RETRY_MS + number * 1000 // RETRIES_PER_SECOND for number in range(1_000)]
    assert [await queue.enter("lease", "node") for _ in range(1_000)][-1] == LATEST_RETRY_MS
    now = 3 * LATEST_RETRY_MS
    assert await queue.enter("lease", "node") == SOONEST_RETRY_MS


async def test_any_number_of_requests_of_one_party_delays_the_others_by_one_place() -> None:
    """Before parties were told apart, 1,200 refused requests of one connection made all nodes wait for `LATEST`."""
    now = 0
    queue = AdmissionQueue(lambda: now, lambda: BURST_REQUESTS + 1)
    flood = [await queue.enter("lease", "eve") for _ in range(1_200)]
    assert flood[0] == SOONEST_RETRY_MS
    assert flood[-1] == LATEST_RETRY_MS
    assert [await queue.enter("lease", f"node {number}") for number in range(20)] == [
        SOONEST_RETRY_MS + (1 + number) * RETRY_STEP_MS for number in range(20)
    ]
    again = await queue.enter("lease", "node 0")
    assert again == SOONEST_RETRY_MS + RETRY_STEP_MS + 21 * RETRY_STEP_MS, (
        "21 parties share the rate of those that come back"
    )
    now += LATEST_RETRY_MS + 1
    assert await queue.enter("lease", "node 3") == SOONEST_RETRY_MS, "what is over holds nobody up"


async def test_a_burst_is_answered_and_only_a_standing_overload_is_refused() -> None:
    """A new Head wakes many nodes at once: a short burst is no overload."""
    now, unanswered = 0, 0
    queue = AdmissionQueue(lambda: now, lambda: unanswered)
    for at, count, refused in (
        (0, 0, False),
        (60_000, MOST_UNANSWERED + 1, False),
        (60_000 + STANDING_OVERLOAD_MS, MOST_UNANSWERED + 1, False),
        (60_001 + STANDING_OVERLOAD_MS, MOST_UNANSWERED + 1, True),
        (60_002 + STANDING_OVERLOAD_MS, MOST_UNANSWERED, False),
        (60_003 + STANDING_OVERLOAD_MS, MOST_UNANSWERED + 1, False),
    ):
        now, unanswered = at, count
        assert (await queue.enter("lease", "node") is not None) == refused
        await asyncio.sleep(0)


async def test_a_burst_that_was_the_last_to_be_seen_makes_no_overload_of_the_next() -> None:
    """No request between the two bursts could have shown that the first had ended."""
    now = 60_000
    queue = AdmissionQueue(lambda: now, lambda: MOST_UNANSWERED + 1)
    assert await queue.enter("lease", "node") is None
    await asyncio.sleep(0)
    now += OVERLOAD_MEMORY_MS + 1
    assert await queue.enter("lease", "node") is None


async def test_a_clock_that_is_set_back_neither_hides_an_overload_nor_lengthens_the_waits() -> None:
    now = 7_200_000
    queue = AdmissionQueue(lambda: now, lambda: BURST_REQUESTS + 1)
    assert await queue.enter("lease", "node") == SOONEST_RETRY_MS
    now -= 3_600_000
    assert await queue.enter("lease", "node") == SOONEST_RETRY_MS

    standing = AdmissionQueue(lambda: now, lambda: MOST_UNANSWERED + 1)
    assert await standing.enter("lease", "node") is None
    await asyncio.sleep(0)
    now -= 1_800_000
    assert await standing.enter("lease", "node") is None
    await asyncio.sleep(0)
    now += STANDING_OVERLOAD_MS + 1
    assert await standing.enter("lease", "node") == SOONEST_RETRY_MS
