"""`echo2-coord keys renew | rotate | revoke | sign | install`: a new Root in the run folder (rules of the documents:
coordinator/run/root_request.py).

Rules
1. Files are written in this order, each durable before the next. First the network identity, at the first change of the
   channel key; then the new key's file; the RunSpec, if the root key changes; and the Root. The new RunSpec is valid
   under the old Root, too. After a crash at any point the coordinator still starts from the folder: with the old keys
   until the new Root is durable, with the new ones afterwards.
2. Before any file is written, the given passphrase must open the existing keys: the coordinator opens the new ones with
   the same passphrase.
3. One command at a time changes a run folder. At its end the command notifies a running coordinator. If none runs, or
   the running one is of an older version, the next start loads the new Root.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from coordinator.run import keys, operator_commands, root_request, setup
from coordinator.run.keys import ONLINE, ROOT
from coordinator.run.root_request import RootRequest, SignedRoot
from coordinator.run.run_folder import RunFolder
from p2p.errors import Unreachable
from p2p.identity import load_key
from runtime.errors import LocalFault
from runtime.files import writing
from runtime.lock import AlreadyLocked, lock_folder

SIGNED: Final = ".signed"
"""The suffix of the answer's file name."""


def change(
    home: Path, role: str | None, *, now: int, secret: str | None, since: int | None = None, out: Path | None = None
) -> list[str]:
    """Issue the next Root and return lines for the operator. `role`: the role that gets another key; None: the Root is
    only renewed. `since`: revoke the old key from that time on (ms). `out`: write a request to this file instead of
    signing. Raises `LocalFault`, `Untrusted`."""
    place = RunFolder(home)
    with _alone(place):
        roots, chain, runspec, _ = setup.read_documents(place)
        root_key = keys.path_of(place, ROOT, chain[-1])
        if out is None and not root_key.exists():
            raise LocalFault(
                f"the root key {keys.spaced(chain[-1].roles[ROOT].keys[0])} is not in {place.keys}: put its file there "
                "for this command, or write a request with --request FILE and sign that on the machine with the key"
            )
        for online in ONLINE:
            path = keys.path_of(place, online, chain[-1])
            if online != role or path.exists():
                load_key(path, secret)
        if out is None:
            load_key(root_key, secret)
        public = None
        if role == "channel":
            keys.keep_identity(place, chain, secret)
        if role in ONLINE:
            public = keys.make_next(place.keys, role, secret)
        asked = root_request.request(roots, runspec, now, role, public, since)
        if out is not None:
            _write(out, msgspec.msgpack.encode(asked))
            return _next_steps(out)
        lines = _described(asked)
        return [*lines, *_installed(place, _signed(asked, place.keys, secret), secret)]


def sign(file: Path, place: Path, *, secret: str | None, confirm: Callable[[list[str]], bool]) -> list[str]:
    """Sign a request with the root key in the folder `place` and write the answer beside the request. `confirm`: gets a
    description of the changes and returns True to sign. Raises `LocalFault`, `Untrusted`."""
    asked = root_request.read(_read(file), RootRequest, str(file))
    assert isinstance(asked, RootRequest)
    if not confirm(_described(asked)):
        return ["nothing was signed"]
    answer = file.with_name(file.name + SIGNED)
    _write(answer, msgspec.msgpack.encode(_signed(asked, place, secret)))
    return [f"signed: {answer}", f"In the run's folder: echo2-coord keys install {answer.name}"]


def install(home: Path, file: Path, *, secret: str | None) -> list[str]:
    """Install a signed Root in the run folder. Raises `LocalFault`, `Untrusted`."""
    place, answer = RunFolder(home), root_request.read(_read(file), SignedRoot, str(file))
    assert isinstance(answer, SignedRoot)
    with _alone(place):
        return _installed(place, answer, secret)


def time_of(text: str, now: int) -> int:
    """Return a past time as Unix milliseconds. `text`: ISO 8601, UTC unless it names a zone. Raises `LocalFault`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise LocalFault(f"--from should be a time such as 2026-11-22T08:00, not {text!r}") from error
    at = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= at <= now:
        raise LocalFault(f"--from {text} is not in the past: say when the key was last known to be safe")
    return at


def _described(asked: RootRequest) -> list[str]:
    before, root = root_request.checked(asked)
    return root_request.described(before, root, asked)


def _signed(asked: RootRequest, place: Path, secret: str | None) -> SignedRoot:
    before, _ = root_request.checked(asked)
    wanted = before.roles[ROOT].keys[0]
    path = keys.path_in(place, ROOT, wanted)
    if not path.exists():
        raise LocalFault(
            f"the root key {keys.spaced(wanted)} is not in {place}: name its folder with --keys; the file is called "
            f"{path.name} or root-{keys.digits(wanted)}.pem"
        )
    key = load_key(path, secret)
    new = None
    if asked.new_root_key:
        new = load_key(keys.path_in(place, ROOT, keys.make_next(place, ROOT, secret)), secret)
    return root_request.signed(asked, key, new)


def _installed(place: RunFolder, answer: SignedRoot, secret: str | None) -> list[str]:
    roots, chain, runspec, _ = setup.read_documents(place)
    if answer.root == roots[-1]:
        return [f"Root {chain[-1].serial} is installed already", *_told(place)]
    root = root_request.verify_answer(answer, roots, runspec)
    keys.load(place, [*chain, root], secret)
    if answer.runspec != runspec:
        _write(place.runspec, answer.runspec)
    _write(place.roots / f"{len(roots) + 1}.root", answer.root)
    gone = [
        str(path) for role in keys.ROLES
        if (path := keys.path_of(place, role, chain[-1])).exists() and root.roles[role] != chain[-1].roles[role]
    ]  # fmt: skip
    spare = [f"no longer needed: {path}" for path in gone]
    return [f"Root {root.serial} is installed", *spare, *_told(place)]


def _told(place: RunFolder) -> list[str]:
    """Notify a running coordinator of the new Root (rule 3), and return a line with the outcome for the operator."""
    try:
        serial = operator_commands.command(place.path, "keys")["serial"]
    except Unreachable as error:
        return [f"{error}; the next start loads the Root"]
    except LocalFault as error:
        return [f"the running coordinator did not load the Root ({error}): restart it"]
    return [f"the running coordinator works under Root {serial}"]


def _next_steps(out: Path) -> list[str]:
    return [
        f"request: {out}",
        f"On the machine with the root key: echo2-coord keys sign {out.name} --keys FOLDER",
        f"Then here:                        echo2-coord keys install {out.name}{SIGNED}",
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


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(root_request.MOST_BYTES + 1)
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        with writing(path) as file:
            file.write(data)
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}") from error
