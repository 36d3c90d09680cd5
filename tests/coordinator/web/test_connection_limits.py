"""Limits on those who connect with the page, ask it, or read it from another web site."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, TCPConnector

from coordinator.web import host_names
from coordinator.web.connection_limits import BURST, ClientConnections, WebLimits, public
from coordinator.web.site import Site, application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun

HERE, THERE, ELSEWHERE = "8.8.8.8", "9.9.9.9", "1.1.1.1"
INVITE = pictures.BUSY.invite


def limited(**limits: int) -> ClientConnections:
    return ClientConnections(WebLimits(**limits))


def test_a_newcomer_takes_the_place_of_the_connection_that_was_quiet_longest() -> None:
    connections = limited(connections=2)
    assert [connections.add(one, ip, now) for one, ip, now in (("a", HERE, 0.0), ("b", THERE, 1.0))] == [None, None]
    connections.admit("a", HERE, 2.0)
    connections.answered("a", 3.0)
    assert connections.add("c", ELSEWHERE, 4.0) == "b"
    assert len(connections) == 2


def test_the_address_with_the_most_connections_loses_one_first() -> None:
    connections = limited(connections=4)
    for one, ip in (("old", THERE), ("a", HERE), ("b", HERE), ("c", HERE)):
        connections.add(one, ip, 0.0)
    assert connections.add("new", ELSEWHERE, 1.0) == "a"


def test_a_connection_at_work_makes_way_for_nobody() -> None:
    connections = limited(connections=1)
    connections.add("a", HERE, 0.0)
    connections.admit("a", HERE, 0.0)
    refused = connections.refusal(THERE)
    assert refused is not None
    assert refused[0] == "web"
    connections.answered("a", 1.0)
    assert connections.refusal(THERE) is None


def test_one_public_address_has_its_share_and_a_proxy_on_loopback_has_no_bound_of_its_own() -> None:
    connections = limited(per_address=2)
    for number in range(2):
        connections.add(number, HERE, 0.0)
    refused = connections.refusal(HERE)
    assert refused is not None
    assert refused[0] == "web-address"
    assert connections.refusal(THERE) is None
    for number in range(100):
        assert connections.refusal("127.0.0.1") is None
        connections.add(("proxy", number), "127.0.0.1", 0.0)
        assert connections.admit(("proxy", number), "127.0.0.1", 0.0) == 0.0
    connections.remove(0)
    assert connections.refusal(HERE) is None


def test_one_public_address_asks_no_faster_than_it_may() -> None:
    connections = limited()
    waits = [connections.admit("a", HERE, 0.0) for _ in range(int(BURST) + 1)]
    assert waits[:-1] == [0.0] * int(BURST)
    assert waits[-1] > 0
    assert connections.admit("b", THERE, 0.0) == 0.0
    assert connections.admit("a", HERE, 1.0) == 0.0


def test_a_connection_that_says_nothing_is_overdue_and_one_at_work_is_not() -> None:
    connections = limited()
    for one in "abc":
        connections.add(one, HERE, 0.0)
    connections.admit("a", HERE, 1.0)
    connections.admit("b", HERE, 1.0)
    connections.answered("b", 20.0)
    assert connections.overdue(WebLimits.idle) == ["c"]
    assert connections.overdue(20.0 + WebLimits.idle) == ["c", "b"]


@pytest.mark.parametrize(
    ("ip", "name"),
    {
        "IPv4": ("8.8.8.8", "8.8.8.8"),
        "a household": ("2606:4700:1:2:3:4:5:6", "2606:4700:1:2::/64"),
        "loopback": ("127.0.0.1", None),
        "loopback, IPv6": ("::1", None),
        "a private network": ("192.168.1.7", None),
        "no address": ("nowhere", None),
    }.values(),
)
def test_addresses_with_a_bound_of_their_own(ip: str, name: str | None) -> None:
    assert public(ip) == name


@pytest.mark.parametrize(
    ("host", "known", "readable"),
    {
        "loopback": ("127.0.0.1:8420", True, False),
        "loopback, IPv6": ("[::1]:8420", True, False),
        "localhost": ("localhost:8420", True, False),
        "a private address": ("192.168.1.7", True, False),
        "a public address": ("8.8.8.8:8420", True, True),
        "the page's name": ("Run.Example.Org.", True, True),
        "what is listened on": ("box.lan:8420", True, False),
        "a web site's name, which resolves to this machine": ("evil.example:8420", False, False),
        "a name that only begins like an address": ("127.0.0.1.evil.example", False, False),
        "a name that ends like the page's": ("evilrun.example.org", False, False),
        "nothing": ("", False, False),
        "no header": (None, True, False),
    }.values(),
)
def test_names_of_the_page(host: str | None, known: bool, readable: bool) -> None:
    assert host_names.known(host, {"run.example.org", "box.lan"}) == known
    assert host_names.readable(host, {"run.example.org"}) == readable


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    limits = WebLimits(connections=20, head=4096, idle=0.3)
    opened = await serve_web(application(FixedRun(pictures.BUSY), names=["run.example.org"]), "127.0.0.1", 0, limits)
    yield opened
    await opened.stop()


async def test_no_web_site_reads_the_invite_of_a_page_on_loopback() -> None:
    """Row n. On 439044d any page that the operator's browser opens reads `/api/v1/run`, the invite included: by CORS,
    and by a name that resolves to this machine."""
    shown = FixedRun(pictures.BUSY)
    page = await serve_web(application(shown), "127.0.0.1", 0)
    read = []
    try:
        async with ClientSession(page.url) as session:
            for path in ("/", "/live", "/api/v1/run", "/api/v1/nodes", "/api/v1/nodes.csv", "/metrics"):
                evil = {"Origin": "http://evil.example"}
                async with session.get(path, headers=evil) as answer:
                    if "Access-Control-Allow-Origin" in answer.headers:
                        read.append(f"{path} by CORS")
                async with session.get(path, headers={"Host": f"evil.example:{page.port}"}) as answer:
                    if answer.status == 200 or INVITE in await answer.text():
                        read.append(f"{path} by rebinding")
    finally:
        await page.stop()
    assert read == []


async def test_an_unknown_name_is_refused_with_the_setting_to_change(site: Site) -> None:
    async with ClientSession(site.url) as session, session.get("/", headers={"Host": "<b>.example"}) as answer:
        assert answer.status == 421
        assert "web.names" in await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_public_name_lets_other_web_sites_read_the_api_and_nothing_else(site: Site) -> None:
    async with ClientSession(site.url) as session:
        for path, readable in (("/api/v1/run", True), ("/api/v1/nodes.csv", True), ("/", False), ("/metrics", False)):
            async with session.get(path, headers={"Host": "run.example.org"}) as answer:
                assert answer.status == 200
                assert answer.headers.get("Access-Control-Allow-Origin") == ("*" if readable else None)


async def sent(port: int, data: bytes) -> bytes:
    """All that the page answers until it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_head_without_end_is_cut(site: Site) -> None:
    assert await sent(site.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-Long: x\r\n" * 1000) == b""


async def test_a_request_with_a_body_is_refused_and_the_connection_ends(site: Site) -> None:
    answer = await sent(site.port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nxxx")
    assert answer.startswith(b"HTTP/1.1 400")


async def test_a_head_that_does_not_come_to_its_end_is_cut(site: Site) -> None:
    began = time.monotonic()
    assert await sent(site.port, b"GET / HTTP/1.1\r\n") == b""
    assert time.monotonic() - began < 5


async def test_a_hundred_idle_connections_keep_no_visitor_out(site: Site) -> None:
    idle = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(100)]
    try:
        connector = TCPConnector(force_close=True)
        async with ClientSession(site.url, connector=connector) as session:
            for _ in range(5):
                async with session.get("/api/v1/run") as answer:
                    assert answer.status == 200
    finally:
        for one in idle:
            one.close()
