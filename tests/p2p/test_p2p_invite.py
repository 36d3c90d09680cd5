"""The invite: one string, pinned by a golden vector, and a sentence for everything that can be wrong with it."""

import hashlib
import json
from pathlib import Path

import base58
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.errors import LocalFault
from p2p.invite import FORMAT, PREFIX, Invite

VECTOR = json.loads((Path(__file__).parents[1] / "vectors" / "invite.json").read_text())
INVITE = Invite(
    run=bytes.fromhex(VECTOR["run"]),
    root_hash=bytes.fromhex(VECTOR["root_hash"]),
    addresses=VECTOR["addresses"],
    https_key=bytes.fromhex(VECTOR["https_key"]),
)


def spelled(content: bytes) -> str:
    """An invite string with a right checksum over any content."""
    return PREFIX + base58.b58encode(content + hashlib.sha256(b"echo2/invite" + content).digest()[:4]).decode()


SHORT_RUN = {"run": b"r" * 31, "root_hash": b"h" * 32, "addresses": ["/x"]}
NO_ADDRESS = {"run": b"r" * 32, "root_hash": b"h" * 32, "addresses": []}

BAD = {
    "nothing": ("", "no invite"),
    "another program's string": ("https://example.org/join", "no invite"),
    "a character that base58 lacks": (VECTOR["text"][:-1] + "0", "damaged"),
    "one character changed": (VECTOR["text"][:-1] + ("2" if VECTOR["text"][-1] != "2" else "3"), "checksum"),
    "the end missing": (VECTOR["text"][:-9], "checksum"),
    "only the prefix": (PREFIX, "damaged"),
    "a megabyte": (PREFIX + "2" * (1 << 20), "too long"),
    "a later format": (spelled(b"\x02" + msgspec.msgpack.encode(INVITE)), "update echo2"),
    "no fields": (spelled(bytes([FORMAT]) + msgspec.msgpack.encode({})), "ask the operator"),
    "a run id of 31 bytes": (spelled(bytes([FORMAT]) + msgspec.msgpack.encode(SHORT_RUN)), "ask the operator"),
    "no address": (spelled(bytes([FORMAT]) + msgspec.msgpack.encode(NO_ADDRESS)), "ask the operator"),
    "deep nesting": (spelled(bytes([FORMAT]) + b"\x91" * 2000), "ask the operator"),
}


def test_the_golden_vector_is_written_and_read() -> None:
    assert INVITE.to_text() == VECTOR["text"]
    assert Invite.from_text(VECTOR["text"]) == INVITE


def test_an_invite_wrapped_by_a_mail_program_is_read() -> None:
    text = VECTOR["text"]
    assert Invite.from_text(f"  {text[:40]}\n   {text[40:]}\n") == INVITE


@pytest.mark.parametrize("sentence", BAD)
def test_what_is_no_invite_is_refused_with_a_sentence(sentence: str) -> None:
    text, said = BAD[sentence]
    with pytest.raises(LocalFault, match=said) as refused:
        Invite.from_text(text)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_local_fault(content: bytes) -> None:
    for text in (spelled(content), PREFIX + content.decode("latin-1")):
        try:
            Invite.from_text(text)
        except LocalFault:
            continue


def test_an_invite_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="fewer addresses"):
        Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/dns4/" + "x" * 390] * 16).to_text()
