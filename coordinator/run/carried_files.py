"""Requests and answers that an operator carries between machines to have them signed with the root keys: their files,
and the signatures on an answer."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from echo2.coordinator.run.keys import spaced_fingerprint
from echo2.p2p.envelope import decode_unverified, join, signers
from echo2.p2p.errors import PeerFault
from echo2.protocol.authority import RoleKeys
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing

MOST_BYTES: Final = 4 << 20
"""The largest request or answer, in bytes."""
SIGNED_SUFFIX: Final = ".signed"
"""The suffix of the answer's file name."""
T = TypeVar("T")


def read_carried(path: Path) -> bytes:
    """Return a file's bytes, at most `MOST_BYTES` and one more, by which a reader sees that it is too long. Raises
    `LocalFault`."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error


def decode_carried(path: Path, kind: type[T], wanted: str) -> T:
    """Read and decode a file. `wanted`: what it should be. Raises `LocalFault`."""
    data = read_carried(path)
    if len(data) > MOST_BYTES:
        raise LocalFault(f"{path} is not a {wanted}: it has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalFault(f"{path} is not a {wanted}: name the file that `echo2-coord keys` wrote") from error


def write_carried(path: Path, data: bytes) -> None:
    """Write a file in one step. Raises `LocalFault`."""
    try:
        with writing(path) as file:
            file.write(data)
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}") from error


def answers(sealed: bytes, document: bytes) -> bool:
    """Tell whether a sealed answer is to the request for this document."""
    try:
        return decode_unverified(sealed).payload == document
    except PeerFault:
        return False


def join_answers(sealed: Sequence[bytes], keys: Collection[bytes] | None = None) -> bytes:
    """Return one answer with the signatures of several to one request. `keys`: whose signatures count; None: of any.
    Raises `Untrusted`."""
    try:
        stated = {signature.key for one in sealed for signature in decode_unverified(one).signatures}
        return join(sealed, stated if keys is None else keys)
    except PeerFault as error:
        raise Untrusted(f"these answers are not to one request: {error}") from error


def missing_signatures(sealed: bytes, role: RoleKeys, name: str) -> str:
    """Return which signatures of a role, called `name`, are missing; empty: none. Raises `Malformed`."""
    good = signers(sealed, role.keys)
    if len(good) >= role.threshold:
        return ""
    others = ", ".join(spaced_fingerprint(key) for key in role.keys if key not in good)
    return f"{len(good)} of {role.threshold} required signatures of the {name}; not yet: {others}"
