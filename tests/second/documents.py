"""Envelopes, the chain of Roots, the invite and peer ids: docs/protocol/documents.md."""

import hashlib
import ipaddress
from contextlib import suppress
from io import BytesIO
from typing import Any

import msgpack
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

ROLES = {"runspec": "root", "version": "policy", "edge": "policy", "head": "channel", "lease": "channel"}
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PARTS = {4: "ip4", 6: "tcp", 41: "ip6", 53: "dns", 54: "dns4", 55: "dns6", 290: "p2p-circuit", 421: "p2p", 443: "https"}
SIZES = {"ip4": 4, "ip6": 16, "tcp": 2, "https": 0, "p2p-circuit": 0}
Map = dict[str, Any]
pack, unpack = msgpack.packb, msgpack.unpackb


class Refused(Exception):
    """Bytes that fail verification; or a Refusal: code, sentence, retry_after in ms."""


def check(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


def order(head: Map) -> tuple[int, int]:
    return head["era"], head["version"]


def digest(data: bytes) -> bytes:
    return blake3(data).digest()


def covered(kind: str, run: bytes, payload: bytes) -> bytes:
    return b"echo2/1/" + kind.encode() + run + len(payload).to_bytes(8, "big") + payload


def seal(kind: str, run: bytes, payload: bytes, key: Ed25519PrivateKey) -> bytes:
    signature = key.public_key().public_bytes_raw(), key.sign(covered(kind, run, payload))
    return pack([kind, run, payload, [signature]])


def opened(sealed: bytes, kind: str, run: bytes, role: Map) -> Map:
    """Return the payload if enough of the role's keys have signed it for this kind and run."""
    named, of, payload, signatures = unpack(sealed)
    check((named, of) == (kind, run), f"a {named} where a {kind} of this run was expected")
    good = set()
    for key, signature in signatures:
        with suppress(BadSignatureError, ValueError):
            VerifyKey(key).verify(covered(kind, run, payload), signature)
            good.add(key)
    check(len(good & set(role["keys"])) >= role["threshold"], f"not enough good signatures under a {kind}")
    return unpack(payload)


class Trust:
    """The verified state of a run: from the invite to the newest Root, Head and Version."""

    def __init__(self, run: bytes, root_hash: bytes) -> None:
        self.run, self.root_hash, self.channel = run, root_hash, bytes(32)
        self.roots, self.head, self.version = list[Map](), Map(), Map()

    def take_roots(self, sealed: list[bytes], now: int) -> None:
        """Verify and store the whole chain, the first Root first."""
        check(hashlib.sha256(sealed[0]).digest() == self.root_hash, "the Root is not the invite's")
        self.roots = []
        for number, one in enumerate(sealed, start=1):
            root = unpack(unpack(one)[2])
            for signer in (*self.roots[-1:], root):
                opened(one, "root", self.run, signer["roles"]["root"])
            check((root["run"], root["serial"]) == (self.run, number), "a Root out of order")
            check({"root", "policy", "channel", "ledger"} <= root["roles"].keys(), "a Root lacks a role")
            self.roots.append(root)
        check(now < self.roots[-1]["expires"], "the Root has expired")
        self.channel = self.roots[-1]["roles"]["channel"]["keys"][0]

    def open(self, sealed: bytes, kind: str) -> Map:
        """Verify by the newest Root; a Received or a Receipt by any."""
        for root in self.roots[:-1] if kind in ("received", "receipt") else []:
            with suppress(Refused):
                return opened(sealed, kind, self.run, root["roles"]["ledger"])
        return opened(sealed, kind, self.run, self.roots[-1]["roles"][ROLES.get(kind, "ledger")])

    def take_head(self, sealed: bytes, now: int) -> Map:
        """Verify a Head that is not older than the last; adopt it at once where its Version is present."""
        head = self.open(sealed, "head")
        check(now < head["expires"], "the Head has expired")
        before = (*order(self.head), self.head["sequence"]) if self.head else ()
        check((*order(head), head["sequence"]) > before or head == self.head, "the Head goes back, or is a second one")
        if self.head and order(head) == order(self.head):
            check(head["version_hash"] == self.head["version_hash"], "two Versions of one number")
            self.head = head
        return head

    def take_version(self, head: Map, sealed: bytes) -> None:
        """Adopt the Version that a newer Head names by its hash: both or neither."""
        version = self.open(sealed, "version")
        check(digest(sealed) == head["version_hash"], "not the Version that the Head names")
        check(order(version) == order(head), "a Version of another number")
        self.head, self.version = head, version

    def take_edges(self, index: bytes, documents: dict[bytes, bytes]) -> list[Map]:
        """Return the edges of the Head's index, verified. `documents`: sealed documents by hash."""
        named, here = unpack(index), (order(self.head), self.version["root"])
        check(digest(index) == self.head["index_hash"] and order(named) == here[0], "another index than the Head's")
        edges = [self.open(documents[name], "edge") for name in named["edges"]]
        for edge in edges:
            check(order(edge) < here[0] or (order(edge), edge["root"]) == here, "an Edge past the Head, or elsewhere")
        return edges


class Taker(BytesIO):
    """Reads numbers and blocks from bytes."""

    def number(self) -> int:
        """Read an unsigned varint (LEB128)."""
        value = place = 0
        while (byte := self.read(1)[0]) > 127 and place < 28:
            value, place = value | (byte & 127) << place, place + 7
        return value | byte << place

    def block(self) -> bytes:
        return self.read(int.from_bytes(self.read(4), "little"))


def peer_id(key: bytes, prefix: bytes = bytes.fromhex("002408011220")) -> str:
    number, out = int.from_bytes(prefix + key, "big"), ""
    while number:
        number, letter = divmod(number, 58)
        out = ALPHABET[letter] + out
    return "1" + out  # its first byte is 0


def read_invite(text: str) -> Map:
    number = 0
    for letter in "".join(text.split()).removeprefix("echo2-"):
        number = number * 58 + ALPHABET.index(letter)
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    check(hashlib.sha256(b"echo2/invite" + data[:-4]).digest()[:4] == data[-4:], "a slip in copying the invite")
    check(data[0] == 2, f"an invite of format {data[0]}")
    run, root_hash, https_key, key, packed, *_ = unpack(data[1:-4])
    addresses = list[str]()
    for one in packed:
        at, first = (2, "/".join(addresses[one[1]].split("/")[:3])) if one[0] == 0 else (0, "")
        binary = f"{first}{multiaddress(one[at:])}/p2p/{peer_id(key)}" if one[0] != 1 else ""
        addresses.append(binary or one[1:].decode())
    return {"run": run, "root_hash": root_hash, "https_key": https_key, "addresses": addresses}


def multiaddress(data: bytes) -> str:
    """Return the text of a multiaddress in binary form."""
    take, out = Taker(data), ""
    while take.tell() < len(data):
        name = PARTS[take.number()]
        value = take.read(SIZES[name] if name in SIZES else take.number())
        shown = ipaddress.ip_address(value) if name[:2] == "ip" else int.from_bytes(value, "big")
        text = shown if name in SIZES else peer_id(value, b"") if name == "p2p" else value.decode()
        out += f"/{name}/{text}" if value else f"/{name}"
    return out
