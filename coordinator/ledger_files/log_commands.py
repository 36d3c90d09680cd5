"""`echo2-coord keys request-log | sign-log | import-log`: begin a new log behind a restored ledger.

    run folder ── LogRequest ──> machines with the root keys ── sealed document ──> run folder

Rules
1. A request is written from run.sqlite, also while the coordinator runs (coordinator/accounts/run_logs.py, rule 4).
2. It is signed with the root keys in a folder, on any machine without a run folder (coordinator/run/log_request.py).
3. An answer is installed once it is complete, follows the logs of the folder, and restores what run.sqlite waits for. A
   coordinator that runs takes it within seconds, another one at its start.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from echo2.coordinator.accounts import run_logs
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import log_request, root_keys, setup
from echo2.coordinator.run.carried_files import (
    SIGNED_SUFFIX,
    decode_carried,
    join_answers,
    missing_signatures,
    read_carried,
    write_carried,
)
from echo2.coordinator.run.keys import spaced_fingerprint
from echo2.coordinator.run.log_request import LogRequest
from echo2.p2p.errors import PeerFault
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import open_log
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault


def request(home: Path, file: Path) -> list[str]:
    """Write a request for the document of the next log; return lines for the operator. Raises `LocalFault`."""
    place = RunFolder(home)
    roots, chain, _, _ = setup.read_documents(place)
    with Database.read(place.database) as database, database.reading():
        document = run_logs.next_log(database, run_logs.read_logs(place, chain), chain)
    asked = LogRequest(roots=list(roots), document=encode(document))
    write_carried(file, msgspec.msgpack.encode(asked))
    return [
        *log_request.describe_log(*log_request.check_log_request(asked)),
        f"request: {file}",
        f"On the machine with the root key: echo2-coord keys sign-log {file.name} --keys FOLDER",
        f"Then here:                        echo2-coord keys import-log {file.name}{SIGNED_SUFFIX}",
    ]


def sign(file: Path, place: Path, secret: str | None, confirm: Callable[[list[str]], bool]) -> list[str]:
    """Sign a request with the root keys in the folder `place`; write the answer beside it, or add signatures to the one
    there. `confirm`: gets a description, and returns True to sign. Raises `LocalFault`."""
    asked = decode_carried(file, LogRequest, "request for a log")
    root, document = log_request.check_log_request(asked)
    wanted = root.roles[ROOT].keys
    given = root_keys.present(place, wanted, secret)
    if not given:
        shown = ", ".join(spaced_fingerprint(key) for key in wanted)
        raise LocalFault(f"none of the root keys {shown} is in {place}: name its folder with --keys")
    if not confirm(log_request.describe_log(root, document)):
        return ["nothing was signed"]
    path = file.with_name(file.name + SIGNED_SUFFIX)
    sealed = log_request.sign_log(asked, given, read_carried(path) if path.exists() else None)
    write_carried(path, sealed)
    ready = f"In the run's folder: echo2-coord keys import-log {path.name}"
    return [f"signed: {path}", missing_signatures(sealed, root.roles[ROOT], "root keys") or ready]


def install(home: Path, *files: Path) -> list[str]:
    """Install a signed document in the run folder (rule 3). `files`: answers to one request, whose signatures count
    together. Raises `LocalFault`."""
    place = RunFolder(home)
    _, chain, _, _ = setup.read_documents(place)
    logs = run_logs.read_logs(place, chain)
    sealed = join_answers([read_carried(file) for file in files], chain[-1].roles[ROOT].keys)
    try:
        one = open_log(sealed, chain)
        if any(known.id == one.id for known in logs.logs):
            return [f"log {one.document.serial} is installed already"]
        logs.with_next(one)
    except PeerFault as error:
        lacking = missing_signatures(sealed, chain[-1].roles[ROOT], "root keys")
        raise Untrusted(f"not installed: {lacking or error}") from error
    with Database.read(place.database) as database:
        copy = run_logs.recorded_copy(database)
    document = one.document
    if copy is None or (copy.number, copy.size, copy.at) != (document.number, document.size, document.restored):
        raise LocalFault("this document is not for the copy that run.sqlite is: write a new request, and sign that")
    place.restored.mkdir(mode=0o700, exist_ok=True)
    write_carried(place.restored / str(document.serial), sealed)
    return [
        f"log {document.serial} is installed: its id is {one.id.hex()}",
        "a running coordinator takes it within seconds, and signs heads again; else its next start does",
        "payments in money wait until you have run `echo2-coord payout restored`",
    ]
