"""Slots of requests: counted by peer, party and class, and released."""

import anyio
import pytest

from echo2.p2p.errors import Busy, Unreachable
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import ALL_SLOTS, CLASSES, PER_PARTY, PER_PEER, STREAMS_PER_PARTY, RequestSlots
from echo2.p2p.memory.transport import MemoryNetwork
from echo2.p2p.peer import rpc
from echo2.p2p.peer.peer import Peer
from tests.support.clock import run_fake
from tests.support.floods import FLOOD, answered, echo, flooded, serving, stuck
from tests.support.peers import running


@pytest.mark.parametrize("method", ["lease", "verdicts", "documents"])
@pytest.mark.slow_but("lease")
def test_many_keys_of_one_subnet_leave_slots_of_every_class_to_others(method: str) -> None:
    shares: list[float] = []

    async def main() -> None:
        network = MemoryNetwork(1)
        network.origins |= {f"eve{number}": Origin(f"eve{number}", "8.8.8.0/24") for number in range(FLOOD)}

        async def work(peer: str, request: bytes) -> bytes:
            return await (stuck if peer.startswith("eve") else echo)(peer, request)

        async def honest(nodes: list[Peer]) -> None:
            shares.append(await answered(nodes, method, each=5))

        await flooded(network, serving(network, **{method: work}), method, b"", honest)

    run_fake(main)
    assert shares == [1.0]


def test_a_request_sent_byte_by_byte_occupies_its_slot_for_a_bounded_time() -> None:
    ends: list[float] = []

    async def main() -> None:
        network = MemoryNetwork(1, patience=600)
        server, slow = serving(network, submit=echo), Peer(network.transport("slow"), seed=1)
        async with running(server, slow):
            for frames in ((), (b"submit",)):
                stream = await network.transports["slow"].open("server", rpc.PROTOCOL)
                began = anyio.current_time()
                for frame in frames:
                    await stream.send(frame)
                with pytest.raises(Unreachable):
                    await stream.receive(1 << 10)
                ends.append(anyio.current_time() - began)

    run_fake(main)
    assert ends == [pytest.approx(rpc.NAME_TIMEOUT), pytest.approx(rpc.TRANSFER_GRACE + (1 << 16) / rpc.TRANSFER_RATE)]


def test_slots_are_released_and_counted_by_peer_party_and_class() -> None:
    slots = RequestSlots()
    eve = [Origin(f"eve{number}", "8.8.8.0/24") for number in range(PER_PARTY + 1)]
    taken = [slots.at_work("submit", one) for one in eve[:PER_PARTY]]
    for one in taken:
        one.__enter__()
    with pytest.raises(Busy), slots.at_work("submit", eve[-1]):
        pass
    with slots.at_work("lease", eve[-1]), slots.at_work("submit", Origin("alice", "8.8.4.0/24")):
        pass
    taken.pop().__exit__(None, None, None)
    with slots.at_work("submit", eve[-1]):
        pass
    with slots.at_work("plan", eve[0]), pytest.raises(Busy), slots.at_work("plan", eve[0]):
        pass
    assert sum(CLASSES.values()) == ALL_SLOTS
    assert min(CLASSES.values()) > PER_PARTY


def test_streams_without_a_known_method_are_bounded_per_peer_and_per_party() -> None:
    slots, open_streams = RequestSlots(), []
    eve = [Origin(f"eve{number}", "8.8.8.0/24") for number in range(5)]
    for one in eve[: STREAMS_PER_PARTY // PER_PEER]:
        for _ in range(PER_PEER):
            open_streams.append(slots.stream(one))
            open_streams[-1].__enter__()
    with pytest.raises(Busy), slots.stream(eve[0]):
        pass
    with pytest.raises(Busy), slots.stream(eve[-1]):
        pass
    with slots.stream(Origin("alice", "alice")):
        pass
