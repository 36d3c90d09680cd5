"""The invite string: golden vectors, and an error with its fix for every kind of damage."""

import hashlib
import json
from typing import Any

import base58
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.discovery.invite import PREFIX, Invite
from echo2.p2p.errors import LocalNetworkFault
from tests.support.paths import VECTORS

ROWS = json.loads((VECTORS / "invite.json").read_text())


def invite_of(row: dict[str, Any]) -> Invite:
    return Invite(
        run=bytes.fromhex(row["run"]),
        root_hash=bytes.fromhex(row["root_hash"]),
        addresses=row["addresses"],
        https_key=None if row["https_key"] is None else bytes.fromhex(row["https_key"]),
    )


VECTOR = ROWS[0]
INVITE = invite_of(VECTOR)


def spelled(content: bytes) -> str:
    """Return an invite string with a valid checksum over any content."""
    return PREFIX + base58.b58encode(content + hashlib.sha256(b"echo2/invite" + content).digest()[:4]).decode()


PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
PARTS = ("/ip4/192.0.2.7", "/ip6/2001:db8::7", "/dns4/run.example.org", "/tcp/4310", "/https", f"/p2p/{PEER}", "/p2p",
         "/p2p-circuit", "/p2p/12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq", "/x", "x", "/")  # fmt: skip
ADDRESSES = st.lists(st.sampled_from(PARTS), max_size=4).map("".join)

SHORT_RUN = [b"r" * 31, b"h" * 32, None, None, [b"\x01/x"]]


def short(*addresses: bytes, key: bytes | None = b"k" * 32) -> str:
    """Return an invite string over any addresses."""
    return spelled(b"\x02" + msgspec.msgpack.encode([b"r" * 32, b"h" * 32, None, key, list(addresses)]))


LOOPBACK = bytes.fromhex("047f000001060001")  # /ip4/127.0.0.1/tcp/1

BAD = {
    "nothing": ("", "no invite"),
    "another program's string": ("https://example.org/join", "no invite"),
    "a character that base58 lacks": (VECTOR["text"][:-1] + "0", "damaged"),
    "one character changed": (VECTOR["text"][:-1] + ("2" if VECTOR["text"][-1] != "2" else "3"), "checksum"),
    "the end missing": (VECTOR["text"][:-9], "checksum"),
    "only the prefix": (PREFIX, "damaged"),
    "a megabyte": (PREFIX + "2" * (1 << 20), "too long"),
    "a later format": (spelled(b"\x03" + msgspec.msgpack.encode(INVITE)), "use the build of the run's operator"),
    "the format before the first release": (
        spelled(b"\x01" + msgspec.msgpack.encode(INVITE)),
        "the invite has format 1, and this build of echo2 reads 2: use the build of the run's operator",
    ),
    "no fields": (spelled(b"\x02" + msgspec.msgpack.encode({})), "ask the operator"),
    "a run id of 31 bytes": (spelled(b"\x02" + msgspec.msgpack.encode(SHORT_RUN)), "ask the operator"),
    "deep nesting": (spelled(b"\x02" + b"\x91" * 2000), "ask the operator"),
    "a map of the fields": (spelled(b"\x02" + msgspec.msgpack.encode(INVITE)), "ask the operator"),
    "no address": (short(), "ask the operator"),
    "seventeen addresses": (short(*[LOOPBACK] * 17), "ask the operator"),
    "an empty address": (short(b""), "ask the operator"),
    "half an address": (short(LOOPBACK[:3]), "ask the operator"),
    "an unknown component": (short(b"\xff\x7f"), "ask the operator"),
    "the host of a later address": (short(bytes([0, 1]) + LOOPBACK[5:], LOOPBACK), "ask the operator"),
    "the host of its own": (short(bytes([0, 0]) + LOOPBACK[5:]), "ask the operator"),
    "the host of an address without a number": (short(LOOPBACK, b"\x00"), "ask the operator"),
    "an address without a key": (short(LOOPBACK, key=None), "ask the operator"),
    "a key of 31 bytes": (short(LOOPBACK, key=b"k" * 31), "ask the operator"),
    "bytes that are no UTF-8": (short(b"\x01\xff"), "ask the operator"),
    "text that is too long": (short(b"\x01" + b"x" * 401), "ask the operator"),
}


@pytest.mark.parametrize("vector", ROWS, ids=[row["what"] for row in ROWS])
def test_a_golden_vector_is_written_and_read(vector: dict[str, Any]) -> None:
    invite = invite_of(vector)
    assert invite.to_text() == vector["text"]
    assert Invite.from_text(vector["text"]) == invite
    assert invite.fingerprint == vector["fingerprint"]


def test_the_invite_of_a_host_with_two_addresses_is_short() -> None:
    hosts = ("/ip4/192.0.2.7", "/ip4/198.51.100.7")
    invite = Invite(
        run=bytes(range(32)),
        root_hash=bytes(range(32, 64)),
        addresses=[f"{host}/tcp/{end}/p2p/{PEER}" for end in ("4310", "4311/https") for host in hosts],
        https_key=bytes(range(64, 96)),
    )
    assert len(invite.to_text()) <= 256


@given(st.lists(ADDRESSES, min_size=1, max_size=16))
@pytest.mark.slow
def test_any_addresses_are_read_as_they_were_written(addresses: list[str]) -> None:
    invite = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=addresses)
    assert Invite.from_text(invite.to_text()) == invite


def test_an_invite_wrapped_by_a_mail_program_is_read() -> None:
    text = VECTOR["text"]
    assert Invite.from_text(f"  {text[:40]}\n   {text[40:]}\n") == INVITE


@pytest.mark.parametrize(
    "form",
    ["<{}>", '"{}"', "`{}`", "\u201c{}\u201d", "\ufeff{}", "\u200b{}\u2060", " <{}>\u00a0\n", "\u00ab{}\u00bb"],
)
def test_an_invite_in_the_signs_of_what_it_was_copied_from_is_read(form: str) -> None:
    text = VECTOR["text"]
    assert Invite.from_text(form.format(text)) == INVITE
    assert Invite.from_text(form.format(f"{text[:50]}\u200b{text[50:99]}\u00ad{text[99:]}")) == INVITE


@pytest.mark.parametrize("sentence", BAD)
def test_a_string_that_is_no_invite_is_refused_with_the_fix(sentence: str) -> None:
    text, said = BAD[sentence]
    with pytest.raises(LocalNetworkFault, match=said) as refused:
        Invite.from_text(text)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=300))
@pytest.mark.slow
def test_no_bytes_raise_anything_but_a_local_fault(content: bytes) -> None:
    for text in (spelled(content), PREFIX + content.decode("latin-1"), short(content), short(LOOPBACK, content)):
        try:
            Invite.from_text(text)
        except LocalNetworkFault:
            continue


def test_an_invite_above_the_longest_that_is_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="fewer addresses"):
        Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/dns4/" + "x" * 390] * 16).to_text()
