"""The request for the next Root and its signed answer, exchanged with the machines of the root keys. Pure.

    run folder ── RootRequest ──> machines with the root keys ── SignedRoot ──> run folder

Rules
1. A request contains every Root, the unsigned next Root, and the RunSpec. Neither request nor answer is secret.
2. The signer signs only a Root that may follow the chain: the next serial of the same run, no role dropped, one key per
   online role, every earlier revocation kept, a lifetime of at most `ROOT_LIFE`. A person sees the changes
   (`described`) before that. The role `payout`, m of n, may be added, and its keys replaced.
3. Where the only root key is replaced, the signer generates the new one, which never leaves that machine, and puts it
   into the Root. All other changes of the root keys or of their threshold stand in the request (`SetChange`); a person
   must consent to those by an option of their own.
4. Where the root keys change, the signers seal the RunSpec, too; the old signatures stay, so it is valid under either
   Root. Each signer adds signatures to the answer; it is complete once the old and the new set have their thresholds.
5. An answer is installed only if it is complete and follows the folder's newest Root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run import signing
from echo2.coordinator.run.carried_files import join_answers, missing_signatures
from echo2.coordinator.run.keys import NETWORK, ONLINE, PAYOUT, ROLES, digits, identity, spaced_fingerprint
from echo2.coordinator.run.root_keys import MOST_ROOT_KEYS
from echo2.coordinator.run.signing import ROOT_LIFE
from echo2.p2p.envelope import decode_unverified, join, seal
from echo2.p2p.errors import Malformed
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import root_chain
from echo2.protocol.authority import RoleKeys, Root, threshold_changes
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import second


class RootRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sign the next Root. `roots`: every Root so far, sealed, oldest first. `root`: the next Root, encoded
    and unsigned. `runspec`: sealed. `new_root_key`: the only root key is replaced. `revoke_root_from`: the old root key
    is revoked from that time of the run on (ms); None: it is not revoked."""

    format: Literal["echo2-root-request/1"] = "echo2-root-request/1"
    roots: list[bytes]
    root: bytes
    runspec: bytes
    new_root_key: bool = False
    revoke_root_from: int | None = None


class SignedRoot(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request. `root`: the sealed Root. `runspec`: the sealed RunSpec that goes with it. Both may lack
    signatures that another signer adds."""

    format: Literal["echo2-signed-root/1"] = "echo2-signed-root/1"
    root: bytes
    runspec: bytes


@dataclass(frozen=True)
class SetChange:
    """A change of the root keys. `threshold`: None: as before. `add`: public keys. `drop`: fingerprints, as digits.
    `since`: when the revocation of the dropped keys begins (ms); None: they are not revoked. `payout`: the keys that
    approve payments from then on; None: as before."""

    threshold: int | None = None
    add: Sequence[bytes] = ()
    drop: Sequence[str] = ()
    since: int | None = None
    payout: RoleKeys | None = None


def request(
    roots: Sequence[bytes], runspec: bytes, now: int, role: str | None, public: bytes | None, since: int | None
) -> RootRequest:
    """Return the request for the next Root. `role`: the role that gets a new key; None: no key changes. `public`: the
    new key, None for the root key. `since`: when the old key's revocation begins (ms); None: it is not revoked. Raises
    `Untrusted`, `LocalFault`."""
    chain = root_chain.check_chain(roots)
    old = replaced_keys(chain, role, revoking=since is not None)
    changed = {} if role is None or public is None else {role: RoleKeys(keys=[public], threshold=1)}
    revoked: dict[bytes, int] = dict.fromkeys(old, since) if since is not None and public else {}
    root = signing.next_root(chain[-1], now, changed, revoked)
    return RootRequest(
        roots=list(roots),
        root=encode(root),
        runspec=runspec,
        new_root_key=role == ROOT,
        revoke_root_from=since if role == ROOT else None,
    )


def replaced_keys(chain: Sequence[Root], role: str | None, *, revoking: bool) -> list[bytes]:
    """Return the keys that another key of `role` replaces; None: no key is replaced. `revoking`: they are revoked, too.
    Raises `LocalFault` where a Root cannot do that."""
    newest = chain[-1]
    old = [] if role is None else [identity(chain)] if role == NETWORK else newest.roles[role].keys
    if len(old) > 1:
        fix = "write a request with `echo2-coord keys export-root`" if role == ROOT else "make another run"
        raise LocalFault(f"role {role} has {len(old)} keys, and this replaces an only key: {fix}")
    if revoking and any(key in old for other, one in newest.roles.items() if other != role for key in one.keys):
        raise LocalFault(
            "the network identity is the channel key, too: rotate or revoke channel first, and then network"
        )
    return old


def request_set(roots: Sequence[bytes], runspec: bytes, now: int, change: SetChange) -> RootRequest:
    """Return the request for a Root with other root keys, or another threshold. Raises `Untrusted`, `LocalFault`."""
    newest = root_chain.check_chain(roots)[-1]
    old = newest.roles[ROOT]
    unknown = [one for one in change.drop if one not in map(digits, old.keys)]
    if unknown:
        raise LocalFault(f"no root key has the fingerprint {unknown[0]}: `echo2-coord keys show` lists them")
    if change.since is not None and not change.drop:
        raise LocalFault("--revoke-from says when dropped keys were stolen: name each of them with --drop")
    dropped = [key for key in old.keys if digits(key) in change.drop]
    kept = [key for key in old.keys if key not in dropped]
    taken = [key for key in change.add if key in old.keys or key in newest.revoked or change.add.count(key) > 1]
    if taken:
        raise LocalFault(
            f"the key {spaced_fingerprint(taken[0])} is a root key already, or was revoked: add another one"
        )
    new, threshold = [*kept, *change.add], change.threshold or old.threshold
    if not threshold <= len(new) <= MOST_ROOT_KEYS:
        raise LocalFault(
            f"{threshold} of {len(new)} root keys should sign: name a threshold of at most the number of keys, and at "
            f"most {MOST_ROOT_KEYS} keys"
        )
    revoked = {} if change.since is None else dict.fromkeys(dropped, change.since)
    changed = {ROOT: RoleKeys(keys=new, threshold=threshold)}
    if change.payout is not None:
        changed[PAYOUT] = _payout(change.payout, newest)
    root = signing.next_root(newest, now, changed, revoked)
    return RootRequest(roots=list(roots), root=encode(root), runspec=runspec)


def _payout(role: RoleKeys, newest: Root) -> RoleKeys:
    """Check the keys that shall approve payments. Raises `LocalFault`."""
    others = {key for name, one in newest.roles.items() if name != PAYOUT for key in one.keys}
    if not _sound_set(role):
        raise LocalFault(f"{role.threshold} of {len(role.keys)} payout keys should sign: a key twice, or too few keys")
    if others & set(role.keys) or newest.revoked.keys() & set(role.keys):
        raise LocalFault("a payout key has another role, or was revoked: make one with `echo2-coord keys make-payout`")
    return role


def check_root_request(asked: RootRequest) -> tuple[Root, Root]:
    """Check a request by rule 2 and return (newest Root, requested Root). Raises `Untrusted`."""
    before = root_chain.check_chain(asked.roots)[-1]
    try:
        root = decode(asked.root, Root)
    except Malformed as error:
        raise Untrusted(f"the request contains no Root: {error}") from error
    root_chain.check_runspec(asked.runspec, before)
    issued = root.issued
    sound = (
        (root.run, root.serial) == (before.run, before.serial + 1)
        and set(before.roles) <= set(root.roles) <= {*ROLES, NETWORK, PAYOUT}
        and all(len(one.keys) == one.threshold == 1 for role, one in root.roles.items() if role not in (ROOT, PAYOUT))
        and all(_sound_set(root.roles[role]) for role in (ROOT, PAYOUT) if role in root.roles)
        and (not asked.new_root_key or (root.roles[ROOT] == before.roles[ROOT] and len(root.roles[ROOT].keys) == 1))
        and before.revoked.items() <= root.revoked.items()
        and root.revoked.keys().isdisjoint(key for one in root.roles.values() for key in one.keys)
        and before.issued < issued < root.expires <= issued + ROOT_LIFE
    )
    if not sound:
        raise Untrusted(f"the requested Root may not follow Root {before.serial}: not signed")
    return before, root


def _sound_set(role: RoleKeys) -> bool:
    return role.threshold <= len(set(role.keys)) == len(role.keys) <= MOST_ROOT_KEYS


def changes_set(before: Root, root: Root) -> bool:
    """Tell whether the next Root names other root keys, or another threshold (rule 3)."""
    return before.roles[ROOT] != root.roles[ROOT]


def describe_root(before: Root, root: Root, asked: RootRequest) -> list[str]:
    """Describe the changes of the next Root for the person who signs, one line per change."""
    lines = [
        f"run      {root.run.hex()}",
        f"Root     {root.serial}, issued {second(root.issued)}, ends {second(root.expires)}",
    ]
    if asked.new_root_key:
        lines.append(f"{ROOT:<9}{spaced_fingerprint(before.roles[ROOT].keys[0])} -> a new key, made here")
    old_set, new_set = before.roles[ROOT].keys, root.roles[ROOT].keys
    lines += [f"{ROOT:<9}{spaced_fingerprint(key)} -> no root key any more" for key in old_set if key not in new_set]
    lines += [f"{ROOT:<9}{spaced_fingerprint(key)} becomes a root key" for key in new_set if key not in old_set]
    if before.roles.get(PAYOUT) != root.roles.get(PAYOUT):
        approvers = root.roles[PAYOUT]
        shown = ", ".join(spaced_fingerprint(key) for key in approvers.keys)
        lines.append(f"{PAYOUT:<9}{approvers.threshold} of these keys approve payments in money: {shown}")
    for role in (*ONLINE, NETWORK):
        old, new = (one.roles[role].keys[0] if role in one.roles else None for one in (before, root))
        if new is not None and old != new:
            former = "the first channel key" if old is None else spaced_fingerprint(old)
            lines.append(f"{role:<9}{former} -> {spaced_fingerprint(new)}")
    revoked = {key: since for key, since in root.revoked.items() if key not in before.revoked}
    if asked.revoke_root_from is not None:
        revoked[before.roles[ROOT].keys[0]] = asked.revoke_root_from
    lines += [f"revoked  {spaced_fingerprint(key)} from {second(since)} on" for key, since in revoked.items()]
    lines += [f"WARNING  {sentence}" for sentence in threshold_changes(before, root)]
    return lines if len(lines) > 2 else [*lines, "keys     unchanged"]


def sign_root(
    asked: RootRequest,
    given: Sequence[Ed25519PrivateKey],
    new: Ed25519PrivateKey | None = None,
    earlier: SignedRoot | None = None,
) -> SignedRoot:
    """Sign the requested Root, and add the signatures to those of `earlier` (rule 4). `given`: root keys of the old or
    the new set. `new`: the root key that replaces the only one, or None. Raises `Untrusted`."""
    before, root = check_root_request(asked)
    publics = [public_bytes(key) for key in given]
    if not publics or not set(publics) <= {*before.roles[ROOT].keys, *root.roles[ROOT].keys}:
        raise Untrusted(
            f"this is not the root key of Root {before.serial} ({spaced_fingerprint(before.roles[ROOT].keys[0])})"
        )
    if asked.new_root_key != (new is not None):
        raise ValueError("a new root key is given exactly where the request asks for one")
    if new is None:
        answer = _seal_root(asked.root, asked.runspec, before, root, given)
        return answer if earlier is None else join_root_answers([earlier, answer])
    roles = root.roles | {ROOT: RoleKeys(keys=[public_bytes(new)], threshold=1)}
    since = asked.revoke_root_from
    revoked = root.revoked | ({} if since is None else {publics[0]: since})
    root = msgspec.structs.replace(root, roles=roles, revoked=revoked)
    return _seal_root(encode(root), asked.runspec, before, root, [*given, new])


def _seal_root(
    payload: bytes, runspec: bytes, before: Root, root: Root, given: Sequence[Ed25519PrivateKey]
) -> SignedRoot:
    sealed = seal(ROOT, root.run, payload, *given)
    if not changes_set(before, root):
        return SignedRoot(root=sealed, runspec=runspec)
    spec = seal("runspec", root.run, decode_unverified(runspec).payload, *given)
    both = {*before.roles[ROOT].keys, *root.roles[ROOT].keys}
    return SignedRoot(root=sealed, runspec=join([spec, runspec], both))


def join_root_answers(signed_roots: Sequence[SignedRoot]) -> SignedRoot:
    """Return one answer with the signatures of several to the same request (rule 4). Raises `Untrusted`."""
    if len(signed_roots) == 1:
        return signed_roots[0]
    return SignedRoot(
        root=join_answers([one.root for one in signed_roots]),
        runspec=join_answers([one.runspec for one in signed_roots]),
    )


def missing(sealed: bytes, before: Root) -> list[str]:
    """Return a line per set of root keys, old and new, whose threshold the signatures do not reach; empty: the answer
    is complete. Raises `Malformed`."""
    root = decode(decode_unverified(sealed).payload, Root)
    sets = {"present": before.roles[ROOT]} | ({"new": root.roles[ROOT]} if changes_set(before, root) else {})
    lines = [missing_signatures(sealed, role, f"{name} root keys") for name, role in sets.items()]
    return list(filter(None, lines))


def verify_answer(answer: SignedRoot, roots: Sequence[bytes], runspec: bytes) -> Root:
    """Verify an answer against the folder's `roots` and sealed `runspec`, and return its Root (rule 5). Raises
    `Untrusted`, and `LocalFault` for an answer to another run or to a request older than the newest Root."""
    before = root_chain.check_chain(roots)[-1]
    _check_place(answer, before)
    try:
        chain = root_chain.check_chain([*roots, answer.root])
    except Untrusted as error:
        raise Untrusted("; ".join([str(error), *_missing_or_none(answer.root, before)])) from error
    for valid_under in (before, chain[-1]):
        root_chain.check_runspec(answer.runspec, valid_under)
    if decode_unverified(answer.runspec).payload != decode_unverified(runspec).payload:
        raise Untrusted("the answer contains another RunSpec than the run's: not installed")
    return chain[-1]


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


def _missing_or_none(sealed: bytes, before: Root) -> list[str]:
    try:
        return missing(sealed, before)
    except Malformed:
        return []
