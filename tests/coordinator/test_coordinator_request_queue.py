"""Under too much load: what was begun is ended first, and asks beyond a bound are refused unread."""

import asyncio

from coordinator.control import Control
from coordinator.rollouts.request_queue import MOST_ASKS, PER_ITERATION, RequestQueue
from p2p.messages import Answer, decode
from p2p.network import RequestHandler
from tests.coordinator.books_world import SPEC, World
from tests.coordinator.test_coordinator_control import COORDINATOR, Papers


def test_submissions_go_before_asks_that_came_earlier_and_no_iteration_answers_too_many() -> None:
    async def main() -> None:
        queue, served = RequestQueue(), list[str]()

        async def request(method: str) -> None:
            assert await queue.enter(method)
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

    asyncio.run(main())


def test_an_asker_that_goes_away_holds_up_nobody() -> None:
    async def main() -> None:
        queue = RequestQueue()
        tasks = [asyncio.create_task(queue.enter("lease")) for _ in range(2 * PER_ITERATION)]
        await asyncio.sleep(0)
        for task in tasks[PER_ITERATION:-1]:
            task.cancel()
        assert await tasks[-1]

    asyncio.run(main())


class Line:
    """A network that remembers the handlers."""

    def __init__(self) -> None:
        self.handlers: dict[str, RequestHandler] = {}

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        self.handlers[method] = handler


def test_asks_beyond_the_bound_are_refused_unread_and_may_come_again(world: World) -> None:
    line = Line()
    Control(world.books, Papers(), SPEC, COORDINATOR, lambda: world.now).serve(line, 1 << 20)  # type: ignore[arg-type]

    async def main() -> None:
        number = PER_ITERATION + MOST_ASKS + 3
        asks = [line.handlers["lease"]("peer", b"no request at all") for _ in range(number)]
        codes = [decode(answer, Answer).refusal for answer in await asyncio.gather(*asks)]
        named = [refusal.code for refusal in codes if refusal is not None]
        assert named == ["malformed"] * (number - 3) + ["busy"] * 3
        assert all(refusal.retry_after for refusal in codes[-3:] if refusal)

    asyncio.run(main())
