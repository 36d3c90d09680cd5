"""A directory: a list of runs, as JSON signed by its author, that anybody may host. Pure.

    {"directory": 1, "author": KEY, "sequence": 7, "issued": MS, "expires": MS, "runs": [RUN, ..], "signature": HEX}

Rules
1. The signature is of `SIGNED_PREFIX` and the text without the field `signature`: JSON with sorted keys, no blanks, in
   ASCII. So any program that writes JSON may keep the file, and change its layout.
2. A directory has at most `MOST_BYTES` bytes and `MOST_RUNS` runs, and names a run once. A text has no control
   characters. Its words are the author's: they vouch for no run, whose invite pins its keys.
3. A reader takes the key from the owner (`URL#KEY`), never from the list.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta

from echo2.p2p.discovery.invite import MOST_INVITE_CHARACTERS, Invite
from echo2.p2p.identity import public_bytes
from echo2.p2p.signatures import verifies
from echo2.runtime.errors import LocalFault

MOST_BYTES: Final = 1 << 20
MOST_RUNS: Final = 1_000
SIGNED_PREFIX: Final = b"echo2 directory 1\0"
ShortText = Annotated[str, Meta(max_length=200)]
Moment = Annotated[int, Meta(ge=0, lt=1 << 53)]


class BadDirectory(LocalFault):
    """A list that cannot be taken; the message is one sentence."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run as the author describes it. `state`: state in the author's words, as in open. `page`: address, or empty."""

    invite: Annotated[str, Meta(max_length=MOST_INVITE_CHARACTERS)]
    name: ShortText = ""
    description: Annotated[str, Meta(max_length=1000)] = ""
    model: ShortText = ""
    task: ShortText = ""
    state: ShortText = ""
    page: ShortText = ""


class RunDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """`author`: public key in hexadecimal digits. `sequence`: number that rises with each list. `issued`, `expires`:
    ms. `runs`: runs in the author's order."""

    directory: int
    author: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    sequence: Moment
    issued: Moment
    expires: Moment
    runs: Annotated[list[ListedRun], Meta(max_length=MOST_RUNS)]

    def invites(self) -> list[Invite]:
        """Return the invites of the runs, in their order. Raises `BadDirectory`."""
        invites = []
        for run in self.runs:
            try:
                invites.append(Invite.from_text(run.invite))
            except LocalFault as error:
                raise BadDirectory(
                    f"the directory's run {run.name!r} has an invite that cannot be read: {error}"
                ) from error
        names = [invite.run for invite in invites]
        twice = next((run for run, name in zip(self.runs, names, strict=True) if names.count(name) > 1), None)
        if twice is not None:
            raise BadDirectory(f"the directory names the run {twice.name!r} twice")
        return invites


def write(runs: Sequence[ListedRun], key: Ed25519PrivateKey, sequence: int, issued: int, expires: int) -> bytes:
    """Return a signed list. Raises `BadDirectory`."""
    author = public_bytes(key).hex()
    written = RunDirectory(
        directory=1, author=author, sequence=sequence, issued=issued, expires=expires, runs=list(runs)
    )
    _check(written)
    fields = msgspec.to_builtins(written)
    fields["signature"] = key.sign(_signed_text(fields)).hex()
    data = json.dumps(fields, indent=1).encode() + b"\n"
    if len(data) > MOST_BYTES:
        raise BadDirectory(
            f"a directory has at most 1 MB, and this one {len(data) / 1e6:.1f}: shorten its descriptions"
        )
    return data


def read(data: bytes, author: bytes) -> RunDirectory:
    """Return a list whose signature holds under the author's key, 32 bytes. Raises `BadDirectory`."""
    if len(data) > MOST_BYTES:
        raise BadDirectory("the directory is larger than 1 MB")
    try:
        fields = json.loads(data)
        signature = bytes.fromhex(fields.pop("signature"))
        signed = _signed_text(fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadDirectory("it is no signed directory: is the address right?") from error
    if fields.get("author") != author.hex() or not verifies(author, signature, signed):
        raise BadDirectory(f"the directory is not signed by {author.hex()[:16]}..: ask its author for address and key")
    try:
        known = msgspec.convert(fields, RunDirectory)
    except msgspec.ValidationError as error:
        raise BadDirectory(f"the directory cannot be read: {error}") from error
    _check(known)
    return known


def _check(known: RunDirectory) -> None:
    if known.directory != 1:
        raise BadDirectory(f"the directory has format {known.directory}, and this build of echo2 reads 1")
    if len(known.runs) > MOST_RUNS:
        raise BadDirectory(f"a directory names at most {MOST_RUNS} runs")
    texts = [value for run in known.runs for value in msgspec.structs.astuple(run)]
    if not all(text.isprintable() for text in texts):
        raise BadDirectory("a text of the directory has characters that cannot be printed")
    known.invites()


def _signed_text(fields: dict[str, Any]) -> bytes:
    return SIGNED_PREFIX + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
