"""The run folder: the path of each file of a run, and the lock that excludes a second coordinator.

coordinator.toml   settings (coordinator.settings.config)
keys/              root.pem (take it offline), policy.pem, channel.pem, ledger.pem; https.pem and its https.crt
keys.sealed        keys/ and payouts/, encrypted, of a restored folder until `echo2-coord restored`
root/1.root ...    every signed Root since the first
restored/1 ...     every signed document of a restored log (protocol/restored_logs.py); missing while there is none
run.spec           the RunSpec, signed by root
model/             config.json, tokenizer.json, model.safetensors: the base, version 0
run.sqlite         leases, submissions, verdicts, ledger; run.sqlite.lock while it is open; run.sqlite.restoring: the
                   copy that a `restore` is about to put in its place
calibrations/      signed Calibrations of engine classes that are not exact
head               the latest signed Head
history.jsonl      steps, evaluations and versions, for people; history-before.jsonl and history-thinned.json with it
payouts/           plans of payments in money, and their files (docs/money.md)
store/             documents and payloads of the published versions, and two of their snapshots
learner/           the learner's checkpoints and exports
scorer/            the weights loaded by the scorer
logs/              coordinator.jsonl
control.sock       the socket for the operator's commands to a running coordinator
page               the page's address, while a coordinator runs
operator_page      the address of the operator's own page, with its token; for the owner's eyes alone
last_state.json    the state that the page showed when the last coordinator ended in order
lock               locked while a coordinator runs; contains its process id
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from echo2.runtime.errors import LocalFault
from echo2.runtime.lock import OF_HOME, AlreadyLocked, lock_file


class FolderInUse(LocalFault):
    """Another coordinator has locked the run."""


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run; this class reads and writes no file."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "coordinator.toml"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def sealed_keys(self) -> Path:
        return self.path / "keys.sealed"

    @property
    def https_key(self) -> Path:
        return self.keys / "https.pem"

    @property
    def https_certificate(self) -> Path:
        return self.keys / "https.crt"

    @property
    def roots(self) -> Path:
        return self.path / "root"

    @property
    def restored(self) -> Path:
        return self.path / "restored"

    @property
    def runspec(self) -> Path:
        return self.path / "run.spec"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def database(self) -> Path:
        return self.path / "run.sqlite"

    @property
    def restoring(self) -> Path:
        return self.path / "run.sqlite.restoring"

    @property
    def calibrations(self) -> Path:
        return self.path / "calibrations"

    @property
    def head(self) -> Path:
        return self.path / "head"

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def store(self) -> Path:
        return self.path / "store"

    @property
    def learner(self) -> Path:
        return self.path / "learner"

    @property
    def scorer(self) -> Path:
        return self.path / "scorer"

    @property
    def log(self) -> Path:
        return self.path / "logs" / "coordinator.jsonl"

    @property
    def page(self) -> Path:
        return self.path / "page"

    @property
    def operator_page(self) -> Path:
        return self.path / "operator_page"

    @property
    def last_state(self) -> Path:
        return self.path / "last_state.json"

    @property
    def lock(self) -> Path:
        return self.path / OF_HOME


@contextlib.contextmanager
def lock_run(folder: RunFolder) -> Iterator[None]:
    """Lock the run for this process. The kernel releases the lock when the process ends, even by SIGKILL.

    Raises `FolderInUse` if another coordinator has locked the run, `LocalFault` if the folder cannot be written, and
    `DiskFull`.
    """
    try:
        lock = lock_file(folder.lock, name_holder=True)
    except AlreadyLocked as error:
        raise FolderInUse(
            f"another coordinator (process {error.holder or 'unknown'}) runs in {folder.path}: stop it first, or name "
            "another folder"
        ) from error
    except OSError as error:
        raise LocalFault(f"cannot write in run folder {folder.path}: {error.strerror}") from error
    with lock:
        yield
