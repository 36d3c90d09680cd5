"""How often a node asks for its place."""

import asyncio
import contextlib

from echo2.node.links.own_rank import FIRST_RANK_SECONDS, RANK_SECONDS, OwnRank
from echo2.p2p.errors import Unreachable
from echo2.protocol.requests import RankResponse
from tests.support.clock import run_fake


def test_a_node_beyond_the_counted_places_asks_no_more_often_than_others() -> None:
    async def main() -> None:
        asked = list[float]()
        loop = asyncio.get_running_loop()

        async def answer() -> RankResponse:
            asked.append(loop.time())
            if len(asked) == 1:
                raise Unreachable("away")
            return RankResponse(rank=None, nodes=20_000)

        place = OwnRank(answer, lambda: True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_RANK_SECONDS + 2.5 * RANK_SECONDS):
                await place.run()
        assert [round(at - asked[0]) for at in asked] == [
            0, FIRST_RANK_SECONDS, FIRST_RANK_SECONDS + RANK_SECONDS, FIRST_RANK_SECONDS + 2 * RANK_SECONDS,
        ]  # fmt: skip
        assert place.words() == ""

    run_fake(main)
