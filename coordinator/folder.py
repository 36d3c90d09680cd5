"""The run folder: where everything of a run lies, and the lock that keeps a second coordinator out.

coordinator.toml   settings (coordinator.config)
keys/              root.pem (take it offline), policy.pem, channel.pem, ledger.pem; https.pem and its https.crt
root/1.root ...    every signed Root since the first
run.spec           the RunSpec, signed by root
model/             config.json, tokenizer.json, model.safetensors: the base, version 0
run.sqlite         leases, submissions, verdicts, ledger; run.sqlite.lock while it is open
head               the last signed Head
history.jsonl      steps, evaluations and versions, for people
store/             documents and payloads of the published versions, and two of their snapshots
learner/           the learner's checkpoints and exports
scorer/            the weights that the scorer holds
logs/              coordinator.jsonl
control.sock       where the operator's commands reach a running coordinator
page               the page's address, while a coordinator runs
lock               held while a coordinator runs; it contains its process id
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2p.errors import LocalFault
from weights.durable import room


class Busy(LocalFault):
    """Another coordinator holds the run."""


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. Nothing is made or read here."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "coordinator.toml"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

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
    def runspec(self) -> Path:
        return self.path / "run.spec"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def database(self) -> Path:
        return self.path / "run.sqlite"

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
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def page(self) -> Path:
        return self.path / "page"

    @property
    def lock(self) -> Path:
        return self.path / "lock"


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold the run for this process. The kernel lets go when the process ends, however it ends.

    Raises `Busy` where another coordinator holds it, `LocalFault` where the folder cannot be written, `DiskFull`.
    """
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LocalFault(f"cannot write in run folder {folder.path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise Busy(
                f"another coordinator (process {owner}) runs in {folder.path}: stop it first, or name another folder"
            ) from error
        with room(folder.lock):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
