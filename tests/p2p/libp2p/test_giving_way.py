"""A circuit that gives way while its target is still asked."""

import trio
import trio.testing

from echo2.p2p.limits.relay_quota import RelayLimits
from tests.support.limit_attacks.reach_attacks import TARGET, HalfStream, connect, peer, relay
from tests.support.muxed_pairs import on_fake_time


def test_a_circuit_that_gives_way_asks_its_target_no_longer():
    service, asked = relay(RelayLimits(circuits=2, per_target=2, per_peer=2))
    one, other, late = (HalfStream(peer(number), f"8.8.{number // 2}.1", connect()) for number in range(3))

    async def main() -> None:
        service.table.reserve(str(TARGET), "7.7.7.7", trio.current_time())
        async with trio.open_nursery() as nursery:
            for stream in (one, other, late):
                nursery.start_soon(service._hop, stream)
                await trio.testing.wait_all_tasks_blocked()
            ended = [stream.ended.is_set() for stream in (*asked, one, other, late)]
            assert ended == [True, False, False, True, False, False]
            assert service.table.circuits == 2
            nursery.cancel_scope.cancel()

    unanswered = service._host.new_stream

    async def new_stream(target, protocols):
        stream = await unanswered(target, protocols)
        stream.data = b""
        return stream

    service._host.new_stream = new_stream
    on_fake_time(main)
