"""Gossip on the in-memory network and a fake clock: who gets a message, when, and what a hostile peer changes."""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.errors import Busy, LocalNetworkFault
from echo2.p2p.limits.origin import Origin
from echo2.p2p.network import GOSSIP_LIMIT
from echo2.p2p.peer import rpc
from echo2.p2p.peer.gossip import (
    JUDGED_BURST,
    JUDGED_RATE,
    LEAST_HOLDERS,
    METHOD,
    MOST_PUSH_BYTES,
    PUSH_SECONDS,
    SWEEP_SECONDS,
    SWEEPS,
    GossipRequest,
)
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import encode
from tests.support.clock import run_fake
from tests.support.peers import peers, running

TOPIC = "heads"


class Hearer:
    """A peer that takes numbers, and passes on each that is higher than all before. `heard`: (sender, number) of those
    that it judged, with the time in seconds since `began`."""

    def __init__(self, network: MemoryNetwork, name: str, *, subscribed: bool = True) -> None:
        self.name, self.peer = name, Peer(network.transport(name), seed=0)
        self.heard: list[tuple[str, int]] = []
        self.at: dict[int, float] = {}
        self.judge: Callable[[int], Awaitable[bool]] = self._is_newest
        if subscribed:
            self.peer.subscribe(TOPIC, self._on_message)

    async def _on_message(self, sender: str, data: bytes) -> bool:
        number = int(data)
        self.heard.append((sender, number))
        self.at.setdefault(number, anyio.current_time())
        return await self.judge(number)

    async def _is_newest(self, number: int) -> bool:
        return all(number > other for _, other in self.heard[:-1])

    async def publish(self, number: int) -> None:
        await self.peer.publish(TOPIC, b"%d" % number)

    async def push(self, peer: str, number: int) -> None:
        """Push a message by hand, as a hostile peer may."""
        await self.peer.request(peer, METHOD, encode(GossipRequest(topic=TOPIC, data=b"%d" % number)), timeout=5)


def hearers(network: MemoryNetwork, names: str) -> list[Hearer]:
    return [Hearer(network, name) for name in names]


async def connect(*edges: tuple[Hearer, Hearer]) -> None:
    for one, other in edges:
        await one.peer.dial(await other.peer.addresses())


def on_network(
    names: str, main: Callable[..., Awaitable[None]], *, delay: float = 0.1, loss: float = 0.0
) -> list[Hearer]:
    """Run `main(network, hearers)` with running hearers that are not connected; return them."""
    network = MemoryNetwork(1, link=Link(delay=delay, loss=loss))
    everybody = hearers(network, names)

    async def run() -> None:
        async with running(*(one.peer for one in everybody), connect=False):
            await main(network, *everybody)

    run_fake(run)
    return everybody


def test_a_message_reaches_peers_that_are_not_neighbours_once_each_and_in_the_time_of_its_path() -> None:
    async def main(network: MemoryNetwork, *chain: Hearer) -> None:
        await connect(*pairwise(chain))
        begun = anyio.current_time()
        await chain[0].publish(7)
        await anyio.sleep(10)
        assert [one.at[7] - begun for one in chain[1:]] == pytest.approx([0.1, 0.2, 0.3])

    assert [one.heard for one in on_network("abcd", main)] == [[], [("a", 7)], [("b", 7)], [("c", 7)]]


def test_a_message_that_a_peer_judges_invalid_goes_no_further() -> None:
    async def main(network: MemoryNetwork, *chain: Hearer) -> None:
        async def refuse(number: int) -> bool:
            return False

        chain[1].judge = refuse
        await connect(*pairwise(chain))
        await chain[0].publish(7)
        await anyio.sleep(10)

    assert [one.heard for one in on_network("abc", main)] == [[], [("a", 7)], []]


def test_an_author_sends_to_every_peer_that_it_knows() -> None:
    async def main(network: MemoryNetwork, author: Hearer, *others: Hearer) -> None:
        await connect(*((one, author) for one in others))
        await author.publish(1)
        await anyio.sleep(1)

    assert [one.heard for one in on_network("abcdefgh", main)[1:]] == [[("a", 1)]] * 7


def test_a_copy_of_the_newest_message_is_not_judged_and_not_sent_back() -> None:
    async def main(network: MemoryNetwork, *ring: Hearer) -> None:
        await connect(*pairwise(ring), (ring[-1], ring[0]))
        await ring[0].publish(1)
        await anyio.sleep(10)
        for _ in range(100):
            await ring[0].push("b", 1)

    a, b, c = on_network("abc", main)
    assert (a.heard, b.heard, c.heard) == ([], [("a", 1)], [("a", 1)])


def test_copies_that_arrive_while_the_first_is_judged_are_passed_on_once() -> None:
    async def main(network: MemoryNetwork, a: Hearer, b: Hearer, middle: Hearer, last: Hearer) -> None:
        async def slowly(number: int) -> bool:
            newest = len(middle.heard) == 1
            await anyio.sleep(2)
            return newest

        middle.judge = slowly
        await connect((a, middle), (b, middle), (middle, last))
        async with anyio.create_task_group() as tasks:
            for one in (a, b):
                tasks.start_soon(one.push, "m", 1)
        await anyio.sleep(5)

    *_, middle, last = on_network("abml", main)
    assert len(middle.heard) == 2
    assert last.heard == [("m", 1)]


def test_a_frozen_peer_delays_no_other_and_gets_the_newest_message_once_it_thaws() -> None:
    async def main(network: MemoryNetwork, author: Hearer, frozen: Hearer, other: Hearer) -> None:
        await connect((frozen, author), (other, author))
        network.freeze("f")
        for number in range(1, 4):
            begun = anyio.current_time()
            await author.publish(number)
            await anyio.sleep(3)
            assert other.at[number] - begun == pytest.approx(0.1)
            assert len(author.peer._transport._streams) == 1, "one push at a time"
        network.thaw("f")
        await anyio.sleep(PUSH_SECONDS + 5)

    _, frozen, other = on_network("afo", main)
    assert [number for _, number in other.heard] == [1, 2, 3]
    assert frozen.heard[-1] == ("a", 3)


def test_a_push_that_fails_is_repeated() -> None:
    async def main(network: MemoryNetwork, author: Hearer, *others: Hearer) -> None:
        for one in others:
            network.set_link("a", one.name, Link(delay=0.1))
            await connect((one, author))
            network.set_link("a", one.name, Link(delay=0.1, loss=0.5))
        await author.publish(1)
        await anyio.sleep(30)
        assert all(one.heard for one in others)

    on_network("abcdefghijklmnopqrstuvwxyz", main)


def test_a_peer_that_connects_a_little_later_gets_the_newest_message_from_who_did_not_write_it() -> None:
    async def main(network: MemoryNetwork, author: Hearer, middle: Hearer, late: Hearer, later: Hearer) -> None:
        await connect((author, middle))
        await author.publish(1)
        await anyio.sleep(5)
        await connect((late, middle))
        await anyio.sleep(SWEEP_SECONDS + 1)
        assert late.heard == [("m", 1)]
        await anyio.sleep(2 * SWEEPS * SWEEP_SECONDS)
        await connect((later, middle))
        await anyio.sleep(60)
        assert later.heard == [], "by then it asks"

    on_network("amlo", main)


def test_a_peer_that_does_not_know_the_method_is_asked_once_while_it_is_connected() -> None:
    asked: Counter[str] = Counter()

    async def main() -> None:
        network = MemoryNetwork(1)
        author, deaf = Hearer(network, "author"), Hearer(network, "deaf", subscribed=False)
        request = author.peer._gossip._request

        async def count(peer: str, *words: object, **named: object) -> bytes:
            asked[peer] += 1
            return await request(peer, *words, **named)

        author.peer._gossip._request = count  # type: ignore[method-assign]
        async with running(author.peer, deaf.peer):
            for number in range(3):
                await author.publish(number)
                await anyio.sleep(5)

    run_fake(main)
    assert asked == {"deaf": 1}


def test_peers_that_had_the_newest_message_and_left_are_forgotten() -> None:
    async def main(network: MemoryNetwork, author: Hearer, node: Hearer) -> None:
        await connect((node, author))
        await author.publish(1)
        await anyio.sleep(1)
        copy = encode(GossipRequest(topic=TOPIC, data=b"1"))
        for number in range(4 * LEAST_HOLDERS):
            await author.peer._gossip._answer(f"eve {number}", copy)
        holders = author.peer._gossip._newest[TOPIC].holders
        assert "b" in holders
        assert len(holders) <= LEAST_HOLDERS + 2
        await anyio.sleep(SWEEPS * SWEEP_SECONDS)

    assert [one.heard for one in on_network("ab", main)] == [[], [("a", 1)]]


def test_forged_messages_are_judged_at_a_low_rate_and_keep_no_honest_one_out() -> None:
    async def main(network: MemoryNetwork, author: Hearer, liar: Hearer, twin: Hearer, victim: Hearer) -> None:
        for one in (liar, twin):
            network.origins[one.name] = Origin(one.name, "the liar's network")
        await connect((author, victim), (liar, victim), (twin, victim))
        refused, begun = 0, anyio.current_time()
        for number in range(500):
            one = (liar, twin)[number % 2]
            try:
                await one.push("v", -number)
            except Busy:
                refused += 1
        judged = len(victim.heard)
        assert judged <= JUDGED_BURST + 1 + JUDGED_RATE * (anyio.current_time() - begun)
        assert refused == 500 - judged
        begun = anyio.current_time()
        await author.publish(1)
        await anyio.sleep(1)
        assert victim.at[1] - begun == pytest.approx(0.001)

    on_network("altv", main, delay=0.001)


def test_an_old_message_replayed_is_not_passed_on() -> None:
    async def main(network: MemoryNetwork, author: Hearer, replayer: Hearer, middle: Hearer, last: Hearer) -> None:
        await connect((author, middle), (replayer, middle), (middle, last))
        for number in (1, 2):
            await author.publish(number)
            await anyio.sleep(5)
        for _ in range(10):
            await replayer.push("m", 1)

    *_, last = on_network("armt", main)
    assert [number for _, number in last.heard] == [1, 2]


def test_requests_that_stop_halfway_take_nothing_that_a_message_needs() -> None:
    async def main(network: MemoryNetwork, author: Hearer, staller: Hearer, victim: Hearer) -> None:
        await connect((author, victim), (staller, victim))
        for _ in range(100):
            stream = await staller.peer._transport.open("v", rpc.PROTOCOL)
            await stream.send(METHOD.encode())
        begun = anyio.current_time()
        await author.publish(1)
        await anyio.sleep(1)
        assert victim.at[1] - begun == pytest.approx(0.1)

    on_network("asv", main)


def test_a_message_too_large_is_refused_where_it_starts_and_where_it_arrives() -> None:
    async def main() -> None:
        async with peers(MemoryNetwork(1), "a") as (a,):
            with pytest.raises(LocalNetworkFault, match=f"exceeds {GOSSIP_LIMIT}"):
                await a.publish(TOPIC, bytes(GOSSIP_LIMIT + 1))

    run_fake(main)
    longest = GossipRequest(topic="é" * 128, data=bytes(GOSSIP_LIMIT))
    assert GOSSIP_LIMIT < len(encode(longest)) <= MOST_PUSH_BYTES


@pytest.mark.slow
def test_every_peer_that_is_left_has_each_message_soon_where_three_in_ten_are_lost() -> None:
    """One peer in five knows the author; of the lost ones half are gone, and half are connected and silent."""
    names, choose = "".join(chr(at) for at in range(0x4E00, 0x4E00 + 100)), Random(3)

    async def main(network: MemoryNetwork, author: Hearer, *others: Hearer) -> None:
        everybody = [author, *others]
        for number, one in enumerate(others, 1):
            some = choose.sample(everybody[1:number], min(8, number - 1))
            await connect(*((one, other) for other in ([author] if number % 5 == 1 else []) + some))
        lost = choose.sample(others, 30)
        for number, one in enumerate(lost):
            (network.kill if number % 2 else network.freeze)(one.name)
        for number in (1, 2, 3):
            begun = anyio.current_time()
            await author.publish(number)
            await anyio.sleep(60)
            assert max(one.at[number] - begun for one in others if one not in lost) < 0.6, "six hops"

    on_network(names, main)
