"""The invite: one string that is all a volunteer needs. The coordinator writes it, the node reads it.

    "echo2-" + base58( format (1 byte, 1) || MessagePack of `Invite` || checksum (4 bytes) )

Rules
1. The checksum is the first four bytes of SHA-256("echo2/invite" || format || MessagePack): it catches a slip of
   copying, and nothing else. Authority comes from `root_hash`, which pins the first sealed Root.
2. Whitespace inside and around is dropped, because mail programs wrap long lines.
3. Whatever is wrong is said in one sentence with the fix, as `LocalFault`: the string is the user's own input.
"""

import base64
import hashlib
from typing import Annotated, Final, Self

import base58
import msgspec
from msgspec import Meta

from p2p.errors import LocalFault
from p2p.messages import Address, Hash

PREFIX: Final = "echo2-"
FORMAT: Final = 1
LONGEST: Final = 4096
"""Characters of the longest invite that is read."""
_CHECKSUM: Final = 4


class Invite(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`run`: run id. `root_hash`: SHA-256 of the first sealed Root. `addresses`: multiaddresses of the coordinator.
    `https_key`: SHA-256 of the coordinator's HTTPS public key (SPKI); None: it offers no HTTPS."""

    run: Hash
    root_hash: Hash
    addresses: Annotated[list[Address], Meta(min_length=1, max_length=16)]
    https_key: Hash | None = None

    @property
    def fingerprint(self) -> str:
        """What a person compares: 80 bits over all that the invite pins (run, root hash, HTTPS key; not the addresses),
        four groups of four letters of RFC 4648's base32."""
        digest = hashlib.sha256(b"echo2/fingerprint" + self.run + self.root_hash + (self.https_key or b"")).digest()
        text = base64.b32encode(digest[:10]).decode()
        return "-".join(text[at : at + 4] for at in range(0, 16, 4))

    def to_text(self) -> str:
        """The one string. Raises `ValueError` where it would exceed `LONGEST` characters."""
        content = bytes([FORMAT]) + msgspec.msgpack.encode(self)
        text = PREFIX + base58.b58encode(content + _checksum(content)).decode()
        if len(text) > LONGEST:
            raise ValueError(f"an invite of {len(text)} characters; name fewer addresses")
        return text

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read an invite. Raises `LocalFault` with the fix."""
        text = "".join(text[: 2 * LONGEST].split())
        if not text.startswith(PREFIX):
            raise LocalFault(f"this is no invite: one begins with {PREFIX!r}; ask the operator for it")
        if len(text) > LONGEST:
            raise LocalFault("the invite is too long: copy it again, and nothing beside it")
        try:
            raw = base58.b58decode(text.removeprefix(PREFIX))
        except ValueError as error:
            raise LocalFault("the invite is damaged (a character that cannot be in it): copy it again") from error
        content, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
        if not content or checksum != _checksum(content):
            raise LocalFault("the invite is damaged (its checksum does not fit): copy it again, whole")
        if content[0] != FORMAT:
            raise LocalFault(f"the invite has format {content[0]}, which this version does not know: update echo2")
        try:
            return msgspec.msgpack.decode(content[1:], type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LocalFault("the invite was made by a faulty program: ask the operator for a new one") from error


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(b"echo2/invite" + content).digest()[:_CHECKSUM]
