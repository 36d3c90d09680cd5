"""`echo2-coord keys renew | rotate | revoke | export-root | sign-root | import-root`: a new Root in the run folder
(rules of the documents: coordinator/run/root_request.py).

Rules
1. Files are written in this order, each durable before the next. First the network identity, at the first change of the
   channel key; then the new key's file; the RunSpec, if the root key changes; and the Root. The new RunSpec is valid
   under the old Root, too. After a crash at any point the coordinator still starts from the folder: with the old keys
   until the new Root is durable, with the new ones afterwards.
2. Before any file is written, the given passphrase must open the existing keys: the coordinator opens the new ones with
   the same passphrase.
3. One command at a time changes a run folder. At its end the command notifies a running coordinator. If none runs, or
   the running one is of an older version, the next start loads the new Root.
4. Root keys are read in the folder that the command names, else in `keys/`. Too few of them there sign nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import keys, operator_commands, root_keys, root_request, setup
from echo2.coordinator.run.carried_files import SIGNED_SUFFIX, answers, decode_carried, write_carried
from echo2.coordinator.run.keys import NETWORK, ONLINE
from echo2.coordinator.run.root_request import RootRequest, SetChange, SignedRoot
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import load_key, peer_id, public_bytes
from echo2.protocol.authority import RoleKeys, Root, threshold_changes
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.lock import AlreadyLocked, lock_folder

MOVED_LINES: Final = [
    "The network identity changes at the next start. The former one answers for 30 days and tells nodes the new",
    "addresses: set network.former_listen and https.former_listen to today's listen addresses, give network.listen and",
    "https.listen other ports, and restart the coordinator. Invites printed after that name the new identity.",
]


def change(
    home: Path,
    role: str | None,
    *,
    now: int,
    secret: str | None,
    since: int | None = None,
    out: Path | None = None,
    root_place: Path | None = None,
) -> list[str]:
    """Issue the next Root and return lines for the operator. `role`: the role that gets another key; None: the Root is
    only renewed. `since`: revoke the old key from that time on (ms). `out`: write a request to this file instead of
    signing. `root_place`: the folder with the root keys (rule 4). Raises `LocalFault`, `Untrusted`."""
    place = RunFolder(home)
    root_place = root_place or place.keys
    with _alone(place):
        roots, chain, runspec, _ = setup.read_documents(place)
        root_request.replaced_keys(chain, role, revoking=since is not None)
        if out is None:
            _enough(root_place, chain[-1].roles[ROOT], secret)
        for online in ONLINE:
            path = keys.path_of(place, online, chain[-1])
            if online != role or path.exists():
                load_key(path, secret)
        public = None
        if role in ("channel", NETWORK):
            keys.keep_identity(place, chain, secret)
        if role in (*ONLINE, NETWORK):
            public = public_bytes(keys.make_next(place.keys, role, secret))
        asked = root_request.request(roots, runspec, now, role, public, since)
        if out is not None:
            write_carried(out, msgspec.msgpack.encode(asked))
            return _next_steps(out)
        lines = _describe_request(asked)
        return [*lines, *_install_root(place, _sign_request(asked, root_place, secret, None), secret)]


def export_root(home: Path, file: Path, change: SetChange, *, now: int) -> list[str]:
    """Write a request for the next Root, with other root keys or another threshold, or a renewal where nothing changes.
    Raises `LocalFault`, `Untrusted`."""
    place = RunFolder(home)
    with _alone(place):
        roots, _, runspec, _ = setup.read_documents(place)
    asked = root_request.request_set(roots, runspec, now, change)
    write_carried(file, msgspec.msgpack.encode(asked))
    before, root = root_request.check_root_request(asked)
    return [*_describe_request(asked), *_next_steps(file, changes_set=root_request.changes_set(before, root))]


def sign(
    file: Path, place: Path, *, secret: str | None, confirm: Callable[[list[str]], bool], set_changes: bool = False
) -> list[str]:
    """Sign a request with the root keys in the folder `place`; write the answer beside the request, or add signatures
    to the one there. `confirm`: gets a description of the changes and returns True to sign. `set_changes`: whether
    the root keys or their threshold may change. Raises `LocalFault`, `Untrusted`."""
    asked = decode_carried(file, RootRequest, "request for a Root")
    before, root = root_request.check_root_request(asked)
    if root_request.changes_set(before, root) and not set_changes:
        changes = [
            one.removeprefix("WARNING  ") for one in _describe_request(asked) if one.startswith(("WARNING", ROOT))
        ]
        first, last = f"Root {root.serial} would change who may sign Roots: not signed", "sign with --changes-root"
        raise Untrusted("; ".join([first, *changes, f"if that is meant, {last}"]))
    if not confirm(_describe_request(asked)):
        return ["nothing was signed"]
    path = file.with_name(file.name + SIGNED_SUFFIX)
    earlier = decode_carried(path, SignedRoot, "signed Root") if path.exists() else None
    fits = earlier is not None and answers(earlier.root, asked.root)
    answer = _sign_request(asked, place, secret, earlier if fits else None)
    write_carried(path, msgspec.msgpack.encode(answer))
    replaced = [] if fits or earlier is None else ["the answer to an earlier request, of the same name, is replaced"]
    short = root_request.missing(answer.root, before)
    ready = f"In the run's folder: echo2-coord keys import-root {path.name}"
    return [f"signed: {path}", *replaced, *(short or [ready])]


def install(home: Path, *files: Path, secret: str | None) -> list[str]:
    """Install a signed Root in the run folder. `files`: answers to one request, whose signatures count together. Raises
    `LocalFault`, `Untrusted`."""
    place = RunFolder(home)
    signed = [decode_carried(file, SignedRoot, "signed Root") for file in files]
    with _alone(place):
        return _install_root(place, root_request.join_root_answers(signed), secret)


def time_of(text: str, now: int, option: str = "--from") -> int:
    """Return a past time as Unix milliseconds. `text`: ISO 8601, UTC unless it names a zone. `option`: its
    name, for the message. Raises `LocalFault`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise LocalFault(f"{option} should be a time such as 2026-11-22T08:00, not {text!r}") from error
    at = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= at <= now:
        raise LocalFault(f"{option} {text} is not in the past: say when the key was last known to be safe")
    return at


def key_of(text: str, option: str = "--add", maker: str = "make-root") -> bytes:
    """Return a public key from its 64 hex digits. Raises `LocalFault`."""
    try:
        public = bytes.fromhex(text)
    except ValueError:
        public = b""
    if len(public) != 32:
        raise LocalFault(f"{option} should be the 64 hex digits that `keys {maker}` printed, not {text!r}")
    return public


def _describe_request(asked: RootRequest) -> list[str]:
    before, root = root_request.check_root_request(asked)
    return root_request.describe_root(before, root, asked)


def _enough(place: Path, role: RoleKeys, secret: str | None) -> None:
    """Check that `place` holds as many root keys as must sign (rule 4). Raises `LocalFault`."""
    here = len(root_keys.present(place, role.keys, secret))
    if here >= role.threshold:
        return
    needed = (
        f"the root key {keys.spaced_fingerprint(role.keys[0])} is not in {place}: put its file there for this command"
        if len(role.keys) == 1
        else f"{here} of {role.threshold} required root keys are in {place}: name their folder with --keys"
    )
    raise LocalFault(f"{needed}, or write a request with --request FILE and sign that on the machine with the key")


def _sign_request(asked: RootRequest, place: Path, secret: str | None, earlier: SignedRoot | None) -> SignedRoot:
    before, root = root_request.check_root_request(asked)
    wanted = list(dict.fromkeys([*before.roles[ROOT].keys, *root.roles[ROOT].keys]))
    given = root_keys.present(place, wanted, secret)
    if not given:
        shown = ", ".join(keys.spaced_fingerprint(key) for key in wanted)
        which = f"the root key {shown} is not" if len(wanted) == 1 else f"none of the root keys {shown} is"
        raise LocalFault(
            f"{which} in {place}: name its folder with --keys; the file is called root.pem or "
            f"root-{keys.digits(wanted[0])}.pem"
        )
    new = keys.make_next(place, ROOT, secret) if asked.new_root_key else None
    return root_request.sign_root(asked, given, new, earlier)


def _install_root(place: RunFolder, answer: SignedRoot, secret: str | None) -> list[str]:
    roots, chain, runspec, _ = setup.read_documents(place)
    if answer.root == roots[-1]:
        return [f"Root {chain[-1].serial} is installed already", *_notify_coordinator(place)]
    root = root_request.verify_answer(answer, roots, runspec)
    keys.load(place, [*chain, root], secret)
    if answer.runspec != runspec:
        write_carried(place.runspec, answer.runspec)
    write_carried(place.roots / f"{len(roots) + 1}.root", answer.root)
    gone = [
        str(path) for role in keys.ROLES for key in chain[-1].roles[role].keys
        if (path := keys.path_in(place.keys, role, key)).exists() and key not in root.roles[role].keys
    ]  # fmt: skip
    spare = [f"no longer needed: {path}" for path in gone]
    loud = threshold_changes(chain[-1], root)
    return [
        f"Root {root.serial} is installed",
        *loud,
        *spare,
        *_notify_coordinator(place),
        *_identity_lines(chain, root),
    ]


def _identity_lines(chain: Sequence[Root], root: Root) -> list[str]:
    """Return the lines on another network identity; empty: `root` keeps it."""
    if keys.identity([*chain, root]) == keys.identity(chain):
        return []
    before = keys.former_identity(chain, root.issued)
    if before is None:
        return MOVED_LINES
    return [
        *MOVED_LINES,
        f"The one before it, {peer_id(before.public)}, ceases to answer: nodes that know it alone need a new invite.",
    ]


def _notify_coordinator(place: RunFolder) -> list[str]:
    """Notify a running coordinator of the new Root (rule 3), and return a line with the outcome for the operator."""
    try:
        serial = operator_commands.command(place.path, "keys")["serial"]
    except Unreachable as error:
        return [f"{error}; the next start loads the Root"]
    except LocalFault as error:
        return [f"the running coordinator did not load the Root ({error}): restart it"]
    return [f"the running coordinator works under Root {serial}"]


def _next_steps(out: Path, *, changes_set: bool = False) -> list[str]:
    consent = " --changes-root" if changes_set else ""
    return [
        f"request: {out}",
        f"On the machine with the root key: echo2-coord keys sign-root {out.name} --keys FOLDER{consent}",
        f"Then here:                        echo2-coord keys import-root {out.name}{SIGNED_SUFFIX}",
    ]


@contextlib.contextmanager
def _alone(place: RunFolder) -> Iterator[None]:
    try:
        lock = lock_folder(place.roots)
    except AlreadyLocked as error:
        raise LocalFault(f"another `echo2-coord keys` works in {place.path}: let it end first") from error
    except OSError as error:
        raise LocalFault(f"{place.path} holds no run ({error.strerror}): name the run folder with --home") from error
    with lock:
        yield
