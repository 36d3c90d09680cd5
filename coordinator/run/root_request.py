"""The request for the next Root and its signed answer, exchanged with the offline machine of the root key. Pure.

    run folder ── RootRequest ──> machine with the root key ── SignedRoot ──> run folder

Rules
1. A request contains every Root, the unsigned next Root, and the RunSpec. Neither request nor answer is secret.
2. The signer signs only a Root that may follow the chain: the next serial of the same run, one key per role, every
   earlier revocation kept, a lifetime of at most `ROOT_LIFE`. A person sees the changes (`described`) before that.
3. Where the root key changes, the signer generates the new one, which never leaves that machine, and puts it into the
   Root. Both keys then seal the RunSpec, which is valid under either Root.
4. An answer is installed only if it follows the folder's newest Root.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.run import signing
from coordinator.run.keys import ROLES, ROOT, spaced
from coordinator.run.signing import ROOT_LIFE, Untrusted
from p2p.envelope import decode_unverified, seal
from p2p.errors import Malformed
from p2p.identity import public_bytes
from p2p.wire_types import decode, encode
from protocol.authority import RoleKeys, Root
from runtime.errors import LocalFault

MOST_BYTES: Final = 4 << 20
"""The largest request or answer, in bytes."""


class RootRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sign the next Root. `roots`: every Root so far, sealed, oldest first. `root`: the next Root, encoded
    and unsigned. `runspec`: sealed. `new_root_key`: the root key changes, too. `revoke_root_from`: the old root key is
    revoked from that time of the run on (ms); None: it is not revoked."""

    format: Literal["echo2-root-request/1"] = "echo2-root-request/1"
    roots: list[bytes]
    root: bytes
    runspec: bytes
    new_root_key: bool = False
    revoke_root_from: int | None = None


class SignedRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request. `root`: the sealed Root. `runspec`: the sealed RunSpec that goes with it."""

    format: Literal["echo2-signed-root/1"] = "echo2-signed-root/1"
    root: bytes
    runspec: bytes


def request(
    roots: Sequence[bytes], runspec: bytes, now: int, role: str | None, public: bytes | None, since: int | None
) -> RootRequest:
    """Return the request for the next Root. `role`: the role that gets a new key; None: no key changes. `public`: the
    new key, None for the root key. `since`: when the old key's revocation begins (ms); None: it is not revoked. Raises
    `Untrusted`, `LocalFault`."""
    newest = signing.check_chain(roots)[-1]
    if role is not None and len(newest.roles[role].keys) != 1:
        raise LocalFault(
            f"role {role} has {len(newest.roles[role].keys)} keys: this version changes only roles with one key"
        )
    changed = {} if role is None or public is None else {role: public}
    revoked = {newest.roles[role].keys[0]: since} if role is not None and since is not None and public else {}
    root = signing.next_root(newest, now, changed, revoked)
    return RootRequest(
        roots=list(roots),
        root=encode(root),
        runspec=runspec,
        new_root_key=role == ROOT,
        revoke_root_from=since if role == ROOT else None,
    )


def checked(asked: RootRequest) -> tuple[Root, Root]:
    """Check a request by rule 2 and return (newest Root, requested Root). Raises `Untrusted`."""
    before = signing.check_chain(asked.roots)[-1]
    try:
        root = decode(asked.root, Root)
    except Malformed as error:
        raise Untrusted(f"the request contains no Root: {error}") from error
    signing.check_runspec(asked.runspec, before)
    issued = root.issued or 0
    sound = (
        (root.run, root.serial) == (before.run, before.serial + 1)
        and set(root.roles) == set(ROLES)
        and all(len(one.keys) == one.threshold == 1 for one in root.roles.values())
        and root.roles[ROOT] == before.roles[ROOT]
        and before.revoked.items() <= root.revoked.items()
        and root.revoked.keys().isdisjoint(key for one in root.roles.values() for key in one.keys)
        and (before.issued or 0) < issued < root.expires <= issued + ROOT_LIFE
    )
    if not sound:
        raise Untrusted(f"the requested Root may not follow Root {before.serial}: not signed")
    return before, root


def described(before: Root, root: Root, asked: RootRequest) -> list[str]:
    """Describe the changes of the next Root for the person who signs, one line per change."""
    lines = [
        f"run      {root.run.hex()}",
        f"Root     {root.serial}, issued {_day(root.issued or 0)}, ends {_day(root.expires)}",
    ]
    for role in ROLES:
        old, new = before.roles[role].keys[0], root.roles[role].keys[0]
        if role == ROOT and asked.new_root_key:
            lines.append(f"{role:<9}{spaced(old)} -> a new key, made here")
        elif old != new:
            lines.append(f"{role:<9}{spaced(old)} -> {spaced(new)}")
    revoked = {key: since for key, since in root.revoked.items() if key not in before.revoked}
    if asked.revoke_root_from is not None:
        revoked[before.roles[ROOT].keys[0]] = asked.revoke_root_from
    lines += [f"revoked  {spaced(key)} from {_day(since)} on" for key, since in revoked.items()]
    return lines if len(lines) > 2 else [*lines, "keys     unchanged"]


def signed(asked: RootRequest, key: Ed25519PrivateKey, new: Ed25519PrivateKey | None) -> SignedRoot:
    """Sign the requested Root. `key`: the run's root key. `new`: the root key that replaces it, or None. Raises
    `Untrusted`."""
    before, root = checked(asked)
    if public_bytes(key) not in before.roles[ROOT].keys:
        raise Untrusted(f"this is not the root key of Root {before.serial} ({spaced(before.roles[ROOT].keys[0])})")
    if asked.new_root_key != (new is not None):
        raise ValueError("a new root key is given exactly where the request asks for one")
    if new is None:
        return SignedRoot(root=seal(ROOT, root.run, encode(root), key), runspec=asked.runspec)
    roles = root.roles | {ROOT: RoleKeys(keys=[public_bytes(new)], threshold=1)}
    since = asked.revoke_root_from
    revoked = root.revoked | ({} if since is None else {public_bytes(key): since})
    root = msgspec.structs.replace(root, roles=roles, revoked=revoked)
    spec = decode_unverified(asked.runspec).payload
    return SignedRoot(
        root=seal(ROOT, root.run, encode(root), key, new), runspec=seal("runspec", root.run, spec, key, new)
    )


def verify_answer(answer: SignedRoot, roots: Sequence[bytes], runspec: bytes) -> Root:
    """Verify an answer against the folder's `roots` and sealed `runspec`, and return its Root (rule 4). Raises
    `Untrusted`, and `LocalFault` for an answer to another run or to a request older than the newest Root."""
    _check_place(answer, signing.check_chain(roots)[-1])
    chain = signing.check_chain([*roots, answer.root])
    signing.check_runspec(answer.runspec, chain[-1])
    if decode_unverified(answer.runspec).payload != decode_unverified(runspec).payload:
        raise Untrusted("the answer contains another RunSpec than the run's: not installed")
    return chain[-1]


def read(data: bytes, kind: type[RootRequest] | type[SignedRoot], name: str) -> RootRequest | SignedRoot:
    """Decode a request or an answer. `name`: the file's name for the message. Raises `LocalFault`."""
    wanted = "request for a Root" if kind is RootRequest else "signed Root"
    if len(data) > MOST_BYTES:
        raise LocalFault(f"{name} is not a {wanted}: it has {len(data)} bytes, more than {MOST_BYTES}")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalFault(f"{name} is not a {wanted}: name the file that `echo2-coord keys` wrote") from error


def _check_place(answer: SignedRoot, newest: Root) -> None:
    """Refuse an answer to another run or to an outdated request. `check_chain` refuses one that does not decode. Raises
    `LocalFault`."""
    try:
        root = decode(decode_unverified(answer.root).payload, Root)
    except Malformed:
        return
    if root.run != newest.run:
        raise LocalFault(
            f"this Root belongs to run {root.run.hex()}, the folder to run {newest.run.hex()}: name the folder of that "
            "run with --home"
        )
    if root.serial <= newest.serial:
        raise LocalFault(
            f"this is Root {root.serial}, requested before Root {newest.serial} was installed: write a new request "
            "with --request, and sign that"
        )


def _day(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
