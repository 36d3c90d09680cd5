"""Each patch of py-libp2p: the behaviour of upstream's own code without it and with it. The first half of a test fails
once upstream has repaired the defect: then the patch is removed."""

import ast
import importlib.util
import inspect
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from echo2._libp2p.abc import INotifee
from echo2._libp2p.custom_types import TProtocol
from echo2._libp2p.io import trio as upstream_trio
from echo2._libp2p.network.connection.swarm_connection import SwarmConn
from echo2._libp2p.network.swarm import Swarm
from echo2._libp2p.peer.id import ID
from echo2._libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from echo2._libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from echo2._libp2p.stream_muxer.yamux.yamux import Yamux
from echo2.p2p.libp2p import patches
from echo2.p2p.libp2p.patches import STREAM_EVENTS, MuxerSelector, patch_host, patch_streams
from echo2.p2p.libp2p.yamux import BoundedYamux
from tests.support.sources import paths, source
from tests.support.upstream_hosts import new_host

ECHO = TProtocol("/test/echo")


def within_trio(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        trio.run(test)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def never(stream: object, address: object) -> None:
    raise AssertionError("no connection comes")


def ignored(conn: object, streams: int, nbytes: int) -> None:
    """Take no note of what streams occupy."""


def patched_host() -> Any:
    host = new_host()
    patch_host(host, {TProtocol(YAMUX): BoundedYamux}, never, ignored)
    return host


def unpatched_stream_class() -> Any:
    """Load upstream's module a second time: the one in use may be patched."""
    spec = importlib.util.spec_from_file_location("unpatched_libp2p_io_trio", upstream_trio.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TrioTCPStream


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (("192.0.2.7", 4310), ("192.0.2.7", 4310)),
        (("2001:db8::7", 4310, 0, 0), ("2001:db8::7", 4310)),
        (("fe80::1%eth0", 4310, 0, 2), ("fe80::1", 4310)),
    ],
)
def test_1_the_remote_address_is_known_over_ipv6_too(name: tuple[Any, ...], expected: tuple[str, int]) -> None:
    socket = SimpleNamespace(getpeername=lambda: name)
    patch_streams()
    addresses = {}
    for kind in (unpatched_stream_class(), upstream_trio.TrioTCPStream):
        stream = kind(SimpleNamespace(socket=socket))
        addresses[kind] = stream.get_remote_address()
    upstream, ours = addresses.values()
    assert ours == expected
    assert upstream == (expected if len(name) == 2 else None)


def test_1_a_closed_socket_has_no_address() -> None:
    def gone() -> object:
        raise OSError("not connected")

    patch_streams()
    stream = upstream_trio.TrioTCPStream(SimpleNamespace(socket=SimpleNamespace(getpeername=gone)))  # type: ignore[arg-type]
    assert stream.get_remote_address() is None


class Broken(Exception):
    pass


async def broken(stream: object) -> None:
    raise Broken


class ResetStream:
    """A stream that records its reset: a guard resets the stream of a failed handler."""

    def __init__(self) -> None:
        self.was_reset = False
        self.muxed_conn = SimpleNamespace(peer_id="peer")

    async def reset(self) -> None:
        self.was_reset = True


@within_trio
async def test_2_an_exception_of_a_stream_handler_does_not_leave_it() -> None:
    source = inspect.getsource(SwarmConn._handle_muxed_stream)
    assert "await self.swarm.common_stream_handler(net_stream)" in source
    assert "except" not in source.partition("common_stream_handler")[2], "upstream catches the exceptions of handlers"
    plain, safe = new_host(), patched_host()
    for host in (plain, safe):
        host.set_stream_handler(ECHO, broken)
    with pytest.raises(Broken):
        await plain.get_mux().handlers[ECHO](ResetStream())
    stream = ResetStream()
    await safe.get_mux().handlers[ECHO](stream)
    assert stream.was_reset
    for protocol, handler in safe.get_mux().handlers.items():
        assert getattr(handler, "guarded", False), f"{protocol} was there before the patch, and is not guarded"
    assert getattr(safe.get_network().common_stream_handler, "guarded", False)


class Notified(INotifee):
    """A notifee that counts its notifications."""

    def __init__(self) -> None:
        self.news: list[str] = []

    async def opened_stream(self, network: Any, stream: Any) -> None:
        self.news.append("opened_stream")

    async def closed_stream(self, network: Any, stream: Any) -> None:
        self.news.append("closed_stream")

    async def connected(self, network: Any, conn: Any) -> None:
        self.news.append("connected")

    async def disconnected(self, network: Any, conn: Any) -> None:
        self.news.append("disconnected")

    async def listen(self, network: Any, multiaddr: Any) -> None:
        self.news.append("listen")

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        self.news.append("listen_close")


@within_trio
async def test_3_notifees_receive_events_of_connections_and_not_of_streams() -> None:
    notified = {}
    for name, host in (("upstream", new_host()), ("patched", patched_host())):
        network, notifee = host.get_network(), Notified()
        network.register_notifee(notifee)
        for method in (*sorted(STREAM_EVENTS), "connected"):
            await network._notify(method, None)
        notified[name] = notifee.news
    assert notified == {"upstream": [*sorted(STREAM_EVENTS), "connected"], "patched": ["connected"]}


@pytest.mark.parametrize(
    ("negotiation", "kind"), [(MuxerMultistream, Yamux), (partial(MuxerSelector, on_load=ignored), BoundedYamux)]
)
def test_4_the_muxer_is_of_the_configured_class(
    negotiation: Callable[..., MuxerMultistream], kind: type[Yamux]
) -> None:
    muxers = negotiation({TProtocol(YAMUX): BoundedYamux})

    async def select(conn: object, is_initiator: bool, timeout: float) -> tuple[TProtocol, type[BoundedYamux]]:
        return TProtocol(YAMUX), BoundedYamux

    muxers._selector.select = select  # type: ignore[method-assign, assignment]

    async def main() -> type:
        return type(await muxers.new_conn(SimpleNamespace(is_initiator=True), ID(b"peer")))  # type: ignore[arg-type]

    assert trio.run(main) is kind


@within_trio
async def test_5_a_place_is_given_back_when_its_connection_ends() -> None:
    upstream = inspect.getsource(Swarm._do_handle_inbound_connection)
    upgraded = upstream.partition("await self.upgrade_inbound_raw_conn(raw_conn, maddr)")[2]
    assert "await self.manager.wait_finished()" in upgraded.partition("except")[0], "upstream waits for something else"
    assert patched_host().get_network()._handle_inbound_connection is never


OUR_OWN = {"fault", "most_window", "on_close", "shield"}
"""Attributes that are set on objects of this project, and on a scope of trio."""


def test_no_other_module_of_the_transport_replaces_anything_in_an_object_of_another() -> None:
    assigned_by = {}
    for path in paths("p2p"):
        uses_libp2p = re.search(r"^(from|import) echo2\._libp2p\b", source(path).text, re.MULTILINE)
        assigned_by[str(path)] = {
            node.attr for node in (source(path).nodes(ast.Attribute) if uses_libp2p else ())
            if isinstance(node.ctx, ast.Store) and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        }  # fmt: skip
    assert {"_notify", "get_remote_address"} <= assigned_by.pop(str(Path(patches.__file__).resolve()))
    assert set().union(*assigned_by.values()) <= OUR_OWN
