"""Multiaddresses: their fields, their binary form, and text that is none."""

import ast
import re
import tracemalloc
from pathlib import Path

import pytest

from benchmarks.payments import trial_provider
from echo2.coordinator.ledger_files import page_client, run_backup
from echo2.coordinator.web import node_ranking
from echo2.coordinator.web.pages import operator_page
from echo2.node import connectivity
from echo2.p2p import multiaddr
from echo2.p2p.discovery.peer_records import is_dialable
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.https import routes, server
from echo2.p2p.limits import origin, party
from echo2.p2p.multiaddr import MOST_ADDRESS_CHARACTERS, address_of, pack, parse, tcp, through, unpack
from tests.support.sources import paths, source

PEER = "12D3KooWGzBhQ7zrMDPdHgVAyVHLWxYwM4XcQmJyoU6i6wYJrmuX"

PARTING = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix"}
COMPONENT = re.compile(r"\b(ip4|ip6|dns4|dns6|p2p-circuit)\b|/(p2p|tcp|memory)/")
OTHER_TEXTS = (
    routes, origin, party, server, node_ranking, page_client, trial_provider, operator_page, connectivity,
    run_backup,
)  # fmt: skip
NOT_ADDRESSES = {str(Path(module.__file__).resolve()) for module in OTHER_TEXTS}


@pytest.mark.parametrize("address", ["/ip4/0.0.0.0/tcp/4310", "/ip6/::/tcp/0", "/ip6/2001:db8::7/tcp/65535"])
def test_a_listening_address_is_recognised(address: str) -> None:
    assert address_of(address).is_listening


@pytest.mark.parametrize(
    "address",
    [
        "", "0.0.0.0:4310", "/ip4/0.0.0.0", "/ip4/0.0.0.0/tcp/65536", "/ip4/0.0.0.0/tcp/-1", "/ip4/::/tcp/1",
        "/ip6/192.0.2.7/tcp/1", "/dns4/example.org/tcp/1", "/ip4/0.0.0.0/udp/1",
        "/ip4/0.0.0.0/tcp/1/p2p/Q", "/ip4/256.0.0.1/tcp/1",
    ],
)  # fmt: skip
def test_any_other_address_is_no_listening_address(address: str) -> None:
    assert not address_of(address).is_listening


URL = "https://[2001:db8::1]:443"
DIRECT, RELAY = f"/ip4/192.0.2.7/tcp/4310/p2p/{PEER}", "/dns4/relay.example/tcp/4310/p2p/R"


@pytest.mark.parametrize(
    ("text", "route", "peers", "relay", "host", "port", "url"),
    {
        "direct": (DIRECT, "direct", [PEER], None, "192.0.2.7", 4310, None),
        "through a relay": (f"{RELAY}/p2p-circuit/p2p/X", "relay", ["R", "X"], "R", "relay.example", 4310, None),
        "relay without a name": ("/ip4/192.0.2.7/tcp/1/p2p-circuit/p2p/X", "relay", ["X"], "", "192.0.2.7", 1, None),
        "over HTTPS": ("/ip6/2001:db8::1/tcp/443/https/p2p/X", "https", ["X"], None, "2001:db8::1", 443, URL),
        "a host of that name": ("/dns/https/tcp/1/p2p/X", "direct", ["X"], None, "https", 1, None),
        "over UDP": ("/ip4/192.0.2.7/udp/1/quic-v1/p2p/X", "direct", ["X"], None, "192.0.2.7", None, None),
        "a port beyond the last": ("/dns4/c.example/tcp/65536/https", "https", [], None, "c.example", None, None),
        "a host without a name": ("/dns4//tcp/443/https", "https", [], None, "", 443, None),
        "a port in other digits": ("/dns4/c.example/tcp/\u0661/https", "https", [], None, "c.example", None, None),
    }.values(),
)  # fmt: skip
def test_an_address_is_read(
    text: str, route: str, peers: list[str], relay: str | None, host: str, port: int | None, url: str | None
) -> None:
    parsed = parse(text)
    assert (parsed.route, parsed.peers, parsed.relay, parsed.host, parsed.port, parsed.https_url) == (
        route, peers, relay, host, port, url,
    )  # fmt: skip
    assert (parsed.peer, parsed.text, address_of(text)) == (peers[-1] if peers else "", text, parsed)


@pytest.mark.parametrize(
    "text",
    {
        "nothing": "",
        "no slash at the beginning": "192.0.2.7:4310",
        "an unknown component": "/ip4/192.0.2.7/tcp/1/carrier-pigeon/p2p/X",
        "a value is missing": "/ip4/192.0.2.7/tcp",
        "a slash too many": "/ip4/192.0.2.7/tcp/1/",
        "too long": "/dns4/" + "a" * MOST_ADDRESS_CHARACTERS,
    }.values(),
)
def test_text_that_is_no_multiaddress_is_malformed_and_as_a_hint_leads_nowhere(text: str) -> None:
    with pytest.raises(Malformed):
        parse(text)
    hint = address_of(text)
    asked = hint.peer, hint.host, hint.ip, hint.port, hint.https_url, hint.relay, hint.is_listening
    assert asked == ("", "", None, None, None, None, False)


@pytest.mark.parametrize("text", [DIRECT, "/dns4/relay.example/tcp/4310/https", "/ip6/2001:db8::1/udp/1/quic-v1"])
def test_the_binary_form_gives_back_the_text(text: str) -> None:
    assert unpack(pack(text)) == text


@pytest.mark.parametrize("text", ["/ip4/192.0.2.256", "/ip4/192.0.2.7/tcp/65536", "/p2p/nobody", "/carrier-pigeon/1"])
def test_text_that_the_library_refuses_has_no_binary_form(text: str) -> None:
    with pytest.raises(Malformed):
        pack(text)


@pytest.mark.parametrize("packed", [b"\x04\x01", b"\xff\xff\x7f", pack(DIRECT)[:-1], b"\x06\x01"])
def test_bytes_that_are_no_multiaddress_are_malformed(packed: bytes) -> None:
    with pytest.raises(Malformed):
        unpack(packed)


def test_addresses_are_written_as_they_are_read() -> None:
    assert address_of(tcp("2001:db8::1", 7, "X")) == parse("/ip6/2001:db8::1/tcp/7/p2p/X")
    behind = address_of(through(RELAY, "X"))
    assert (behind.before_circuit.text, behind.endpoint) == (RELAY, "/dns4/relay.example/tcp/4310")
    with pytest.raises(Unreachable):
        tcp("relay.example", 7)


def test_no_other_module_parses_a_multiaddress() -> None:
    """No other module splits at a slash or at a component's name; `NOT_ADDRESSES` split other texts at a slash."""
    parsing = []
    for path in (path for package in ("coordinator", "node", "p2p") for path in paths(package)):
        for call in source(path).nodes(ast.Call):
            if not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr not in PARTING or not call.args or not isinstance(call.args[0], ast.Constant):
                continue
            at = str(call.args[0].value)
            if COMPONENT.search(at) or (at == "/" and str(path) not in NOT_ADDRESSES):
                parsing.append(f"{path}:{call.lineno}: {call.func.attr}({at!r})")
    wrong = [one for one in parsing if not one.startswith(f"{Path(multiaddr.__file__).resolve()}:")]
    assert not wrong, wrong
    assert parsing, "the search found not even the parser"


def test_made_up_addresses_do_not_fill_the_memory() -> None:
    tracemalloc.start()
    try:
        for number in range(512):
            assert not is_dialable(f"{'/ws' * 120}/p2p/{number}", PEER)  # within the 400 characters of a record
            assert not is_dialable(f"/dns4/{'x' * 370}{number}/tcp/1/p2p/Q", PEER)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
