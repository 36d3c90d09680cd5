"""Slots of requests: counted by peer, party and class, and released."""

from contextlib import ExitStack, suppress

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.errors import Busy, Unreachable
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import ALL_SLOTS, CLASS_OF, CLASSES, OTHER_CLASS, PER_PARTY, RequestSlots
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


def test_a_request_whose_rest_does_not_come_is_given_up() -> None:
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
                with suppress(Unreachable):
                    while await stream.receive(1 << 10) == b"":  # still waiting for the rest
                        pass
                ends.append(anyio.current_time() - began)

    run_fake(main)
    assert ends == [pytest.approx(RATE_SECONDS), pytest.approx(RATE_SECONDS)]


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


@pytest.mark.parametrize("method", ["submit", "verdicts", "hello", "lease", "step", "plan", "documents"])
def test_strangers_leave_a_quarter_of_each_class_to_parties_with_accepted_work(method: str) -> None:
    slots, taken = RequestSlots(), ExitStack()
    most = CLASSES[CLASS_OF.get(method, OTHER_CLASS)]
    with taken:
        for number in range(most - most // 4):
            taken.enter_context(slots.at_work(method, Origin(f"eve{number}", f"party {number}")))
        with pytest.raises(Busy):
            taken.enter_context(slots.at_work(method, Origin("eve", "another party")))
        for number in range(most // 4):
            taken.enter_context(slots.at_work(method, Origin(f"node{number}", f"proven {number}", True)))
        with pytest.raises(Busy):
            taken.enter_context(slots.at_work(method, Origin("node", "one more", True)))
    with slots.at_work(method, Origin("eve", "another party")):
        pass


def test_a_request_of_which_half_has_come_takes_no_slot() -> None:
    served: list[str] = []

    async def main() -> None:
        network = MemoryNetwork(1)
        network.origins |= {f"eve{number}": Origin(f"eve{number}", "8.8.8.0/24") for number in range(2)}
        server = serving(network, submit=echo)
        peers = [Peer(network.transport(name), seed=1) for name in ("eve0", "eve1")]
        async with running(server, *peers):
            for _ in range(2 * PER_PARTY):
                stream = await network.transports["eve0"].open("server", rpc.PROTOCOL)
                await stream.send(b"submit")
            await anyio.sleep(1)
            served.append((await peers[1].request("server", "submit", b"whole", timeout=5)).decode())

    run_fake(main)
    assert served == ["whole"]
