"""The ten faults of py-libp2p that docs/libp2p-faults.md lists, each with the tests of its counter-measure. Those
without a place elsewhere are here."""

import ast
import re
import tomllib

import pytest
import trio

from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network import swarm
from echo2._libp2p.network.exceptions import SwarmException
from echo2._libp2p.peer.peerinfo import info_from_p2p_addr
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.errors import Unreachable
from echo2.p2p.libp2p import transport as libp2p
from echo2.p2p.limits.subnets import CONNECTIONS
from tests.support.libp2p_peers import MB, echo, new_peer, on_trio, running
from tests.support.paths import ROOT
from tests.support.upstream_hosts import new_host

SINK = "/test/sink"
PLAINTEXT = "/plaintext/2.0.0"


def listed() -> dict[int, list[str]]:
    """Return fault -> `file::test`, as listed in the document."""
    text = (ROOT / "docs" / "libp2p-faults.md").read_text()
    items = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)[1:]
    pairs = zip(items[::2], items[1::2], strict=True)
    return {int(number): re.findall(r"`([\w/]+\.py::\w+)`", item) for number, item in pairs}


def test_each_of_the_ten_faults_has_a_test_and_each_test_is_there() -> None:
    faults = listed()
    assert list(faults) == list(range(1, 11))
    for number, tests in faults.items():
        assert tests, f"fault {number} has no test"
        for test in tests:
            path, _, name = test.partition("::")
            tree = ast.parse((ROOT / "tests" / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.fixture(params=["our muxer", "stock yamux"])
def muxer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The muxer between two peers of the test."""
    if request.param == "stock yamux":
        monkeypatch.setattr(libp2p, "MUXERS", {YAMUX: Yamux})
    return request.param


async def test_a_send_that_blocks_and_is_cancelled_leaves_the_connection_whole(muxer):
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a, b):

        async def never_read(stream) -> None:
            await trio.sleep_forever()

        async def serve(transport) -> None:
            transport.handle(SINK, never_read)

        async def block(transport) -> list[object]:
            before = list(transport.connections.open)
            stream = await transport.open(a.peer_id, SINK)
            with trio.move_on_after(0.3) as blocked:
                while True:
                    await stream.send(bytes(4 * MB))
            assert blocked.cancelled_caught
            await stream.reset()
            return before

        async def the_same(transport) -> bool:
            return list(transport.connections.open) == before

        await on_trio(a, serve)
        before = await on_trio(b, block)
        for _ in range(5):
            assert await b.request(a.peer_id, "echo", b"x", timeout=60) == b.peer_id.encode() + b":x"
        assert await on_trio(b, the_same), "it was not dialled anew"


async def test_a_dial_waits_for_no_second_connection(monkeypatch):
    monkeypatch.setattr(swarm, "_HAPPY_EYEBALLS_DELAY", 10 * libp2p.DIAL_TIMEOUT)
    a, b = new_peer(), new_peer()
    async with running(a), running(b):
        assert await a.dial(await b.addresses()) == b.peer_id


async def test_a_host_that_speaks_plaintext_alone_is_no_peer():
    ours = new_peer()

    async def speak_plaintext(transport) -> None:
        host = new_host(security=PLAINTEXT)
        async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            with pytest.raises(SwarmException):
                await host.connect(info_from_p2p_addr(Multiaddr(transport.addresses()[0])))
            with pytest.raises(Unreachable):
                await transport.dial([str(host.get_addrs()[0])])

    async with running(ours):
        await on_trio(ours, speak_plaintext)
        assert await ours.peers() == []


async def test_the_limits_are_set_explicitly():
    peer = new_peer()

    async def limits(transport) -> tuple[object, ...]:
        network = transport.host.get_network()
        shared = network._resource_manager, network._stream_semaphore
        return *shared, network.connection_config.max_connections_per_peer, transport._most

    async with running(peer):
        assert await on_trio(peer, limits) == (None, None, 1, CONNECTIONS + libp2p.OWN_DIALS)


def test_no_name_that_upstream_installs_is_in_the_wheel():
    """Upstream's wheel has packages `examples`, `docs` and `interop` beside its own."""
    assert {path.name for path in (ROOT / "echo2" / "_libp2p").iterdir()} & {"examples", "docs", "interop"} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["echo2"]
