"""The invite: one string with all that a volunteer needs to join. The coordinator writes it, the node reads it.

    "echo2-" + base58( format (1 byte) || MessagePack || checksum (4 bytes) )

Rules
1. The checksum is the first four bytes of SHA-256("echo2/invite" || format || MessagePack). It detects copying errors
   only; authority comes from `root_hash`, which pins the first sealed Root.
2. Dropped are whitespace, as mail programs wrap long lines, characters without a width, which web pages break lines
   at, and signs that people and programs put around a link or a code: <>, quotes, backticks.
3. An invalid invite is a `LocalNetworkFault` whose sentence says how to fix it: the string is the user's own input.
4. The MessagePack is that of `_Short`: multiaddresses in binary form, the coordinator's peer id and each host once. It
   is not deflated: the output of deflate differs between libraries, and would hardly be shorter.
5. An address that this form would not reproduce exactly is stored as text.
"""

import base64
import hashlib
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, Self

import base58
import msgspec
from msgspec import Meta

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.identity import peer_id, public_key
from echo2.p2p.multiaddr import address_of, pack, peer_of, unpack
from echo2.p2p.signatures import check_key
from echo2.p2p.wire_types import Address, Hash

PREFIX: Final = "echo2-"
FORMAT: Final = 2
MOST_INVITE_CHARACTERS: Final = 4096
_MARKS: Final = "<>\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_CHECKSUM: Final = 4
_HOST_OF: Final = 0
_TEXT: Final = 1
"""First byte of an address with the host of an earlier one, and of one stored as text: neither is a multiaddress
code."""


class Invite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of an invite. `run`: run id. `root_hash`: SHA-256 of the first sealed Root. `addresses`:
    multiaddresses of the coordinator. `https_key`: SHA-256 of its HTTPS public key (SPKI); None: it offers no HTTPS."""

    run: Hash
    root_hash: Hash
    addresses: Annotated[list[Address], Meta(min_length=1, max_length=16)]
    https_key: Hash | None = None

    @property
    def fingerprint(self) -> str:
        """The fingerprint that a person compares: 80 bits over all that the invite pins (run, root hash, HTTPS key; not
        the addresses), as four groups of four letters of RFC 4648's base32."""
        digest = hashlib.sha256(b"echo2/fingerprint" + self.run + self.root_hash + (self.https_key or b"")).digest()
        text = base64.b32encode(digest[:10]).decode()
        return "-".join(text[at : at + 4] for at in range(0, 16, 4))

    def to_text(self) -> str:
        """Write the invite as a string. Raises `ValueError` where it would exceed `MOST_INVITE_CHARACTERS`
        characters."""
        content = bytes([FORMAT]) + msgspec.msgpack.encode(_short_form(self))
        text = PREFIX + base58.b58encode(content + _checksum(content)).decode()
        if len(text) > MOST_INVITE_CHARACTERS:
            raise ValueError(f"an invite of {len(text)} characters; name fewer addresses")
        return text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read an invite. Raises `LocalNetworkFault`, with the fix."""
        text = "".join(one for one in text[: 2 * MOST_INVITE_CHARACTERS] if not _is_around(one))
        if not text.startswith(PREFIX):
            page = "the address of a run's page with https://"
            raise LocalNetworkFault(f"this is no invite: one begins with {PREFIX!r}, {page}; ask the operator for it")
        if len(text) > MOST_INVITE_CHARACTERS:
            raise LocalNetworkFault("the invite is too long: copy it again, and nothing beside it")
        try:
            raw = base58.b58decode(text.removeprefix(PREFIX))
        except ValueError as error:
            raise LocalNetworkFault(
                "the invite is damaged (a character that cannot be in it): copy it again"
            ) from error
        content, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
        if not content or checksum != _checksum(content):
            raise LocalNetworkFault("the invite is damaged (its checksum does not fit): copy it again, whole")
        if content[0] != FORMAT:
            raise LocalNetworkFault(
                f"the invite has format {content[0]}, and this build of echo2 reads {FORMAT}: use the build of the "
                "run's operator"
            )
        try:
            return msgspec.convert(_invite_fields(msgspec.msgpack.decode(content[1:], type=_Short)), cls)
        except (msgspec.MsgspecError, ValueError, LookupError, RecursionError, Malformed) as error:
            raise LocalNetworkFault(
                "the invite was made by a faulty program: ask the operator for a new one"
            ) from error


def _is_around(character: str) -> bool:
    """Tell whether a character is none of an invite, but of the text that it was copied from (rule 2)."""
    return character.isspace() or character in _MARKS or unicodedata.category(character) == "Cf"


class _Short(msgspec.Struct, frozen=True, array_like=True):
    """The content as it is written. `key`: Ed25519 key of the peer id at the end of the addresses; None: all of them
    are text.

    An address is one of: a multiaddress in binary form without that end; byte 0, a byte n and such a form, to be
    prefixed with the first component of the earlier address n (counted from 0); byte 1 and an address as UTF-8 text."""

    run: Hash
    root_hash: Hash
    https_key: Hash | None
    key: Hash | None
    addresses: Annotated[list[Annotated[bytes, Meta(min_length=1)]], Meta(min_length=1, max_length=16)]


def _short_form(invite: Invite) -> _Short:
    key = next(filter(None, map(_key_at_the_end, invite.addresses)), None)
    entries = [_entry(place, invite.addresses, key) for place in range(len(invite.addresses))]
    return _Short(invite.run, invite.root_hash, invite.https_key, key, entries)


def _invite_fields(short: _Short) -> dict[str, object]:
    """Return the fields of an `Invite`. Raises ValueError, LookupError, `Malformed`."""
    if short.key is not None:
        check_key(short.key)
    addresses: list[str] = []
    for entry in short.addresses:
        addresses.append(_address(entry, addresses, short.key))
    return {"run": short.run, "root_hash": short.root_hash, "https_key": short.https_key, "addresses": addresses}


def _entry(place: int, addresses: Sequence[str], key: bytes | None) -> bytes:
    """Encode address number `place` by rules 4 and 5."""
    address = addresses[place]
    with suppress(ValueError, LookupError, Malformed):  # not a multiaddress: stored as text
        if key is not None and address.endswith(_end(key)):
            host, rest = address_of(address.removesuffix(_end(key))).split_host
            earlier = [address_of(other).split_host[0] for other in addresses[:place]]
            begin = bytes([_HOST_OF, earlier.index(host)]) if host in earlier else pack(host)
            entry = begin + pack(rest)
            if _address(entry, addresses, key) == address:
                return entry
    return bytes([_TEXT]) + address.encode()


def _address(entry: bytes, before: Sequence[str], key: bytes | None) -> str:
    """Decode the address of an entry. `before`: those of earlier entries. Raises ValueError, LookupError, Malformed."""
    if entry[0] == _TEXT:
        return entry[1:].decode()
    if key is None:
        raise ValueError("an address in binary form, and no key")
    if entry[0] == _HOST_OF:
        return address_of(before[entry[1]]).split_host[0] + unpack(entry[2:]) + _end(key)
    return unpack(entry) + _end(key)


def _end(key: bytes) -> str:
    return f"/p2p/{peer_id(key)}"


def _key_at_the_end(address: str) -> bytes | None:
    try:
        return public_key(peer_of(address))
    except Malformed:
        return None


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(b"echo2/invite" + content).digest()[:_CHECKSUM]
