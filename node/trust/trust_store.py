"""The trusted documents on disk: durable before any part acts on them, verified again when they are read.

Rules
1. Roots, RunSpec, Head and Version are stored as the sealed bytes received. At a start they pass through `TrustedSet`
   like bytes from any peer, so a tampered folder cannot introduce a document.
2. A file is whole or absent (runtime/files.py), and fsynced before a method of `TrustStore` returns.
3. A Version is written before the Head that names it. A stored document that no longer verifies is skipped with a
   warning. A Root that does not verify is an error: the chain from the invite must be whole.
"""

import contextlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import structlog

from echo2.node.trust.trusted_set import TrustedSet
from echo2.p2p.envelope import Verified, decode_unverified, document_hash
from echo2.p2p.errors import Malformed, P2PError
from echo2.protocol.authority import RunSpec, WrongRoot, threshold_changes
from echo2.protocol.versions import Head
from echo2.runtime.files import writing
from echo2.weights.documents import Version

_log = structlog.get_logger("node")


class TrustStore:
    """A `TrustedSet` stored in a folder. Its methods are those of the set; what they adopt is durable once they
    return."""

    def __init__(self, folder: Path, run: bytes, root_hash: bytes, now: int) -> None:
        """Read the folder. `now`: milliseconds, by this machine's clock. Raises `WrongRoot` if the stored Roots are
        damaged, or not the invite's."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.on_roots: list[Callable[[], None]] = []
        """Called when newer Roots were adopted."""
        self.trusted = TrustedSet(run, root_hash)
        for path in sorted(folder.glob("root.*")):
            try:
                self.trusted.restore_root(path.read_bytes())
            except Malformed as error:
                raise WrongRoot(f"{path} is no Root ({error}): move it away, and it is fetched again") from error
        if self.trusted.root is not None:
            self._restore(now)

    @property
    def serial(self) -> int | None:
        """The serial of the newest Root; None before the first."""
        return None if self.trusted.root is None else self.trusted.root.serial

    def update_roots(self, roots: list[bytes], now: int) -> None:
        """Adopt Roots in order, from the first or from the successor of the newest one here. Valid Roots are kept even
        if a later one is invalid. Raises as `TrustedSet.update_root` and `check_root`."""
        before = self.serial
        try:
            for sealed in roots:
                self.trusted.update_root(sealed, now)
        finally:
            for place, sealed in enumerate(self.trusted.roots):
                self._write(f"root.{place:06d}", sealed)
        if before is not None and self.serial != before:
            _log.info("newer Root taken", serial=self.serial)
            for earlier, later in pairwise(self.trusted.chain):
                if later.serial > before:
                    for sentence in threshold_changes(earlier, later):
                        _log.warning("threshold changed", change=sentence)
            for notify in self.on_roots:
                notify()
        self.trusted.check_root(now)

    def update_runspec(self, sealed: bytes) -> Verified[RunSpec]:
        """Adopt and store a RunSpec (`TrustedSet.update_runspec`)."""
        runspec = self.trusted.update_runspec(sealed)
        self._write("runspec", runspec.sealed)
        return runspec

    def offer_head(self, sealed: bytes, now: int) -> Verified[Head]:
        """Verify a Head, and store it if it is adopted (`TrustedSet.offer_head`)."""
        head = self.trusted.offer_head(sealed, now)
        if self.trusted.head is not None:
            self._write("head", self.trusted.head.sealed)
        return head

    def update_version(self, head_sealed: bytes, version_sealed: bytes, now: int) -> Verified[Version]:
        """Adopt and store a Version and its Head (`TrustedSet.update_version`)."""
        version = self.trusted.update_version(head_sealed, version_sealed, now)
        self._write("version", version.sealed)
        self._write("head", head_sealed)
        return version

    def _restore(self, now: int) -> None:
        runspec, head, version = (self._read(name) for name in ("runspec", "head", "version"))
        if runspec:
            with _left_out("runspec"):
                self.trusted.update_runspec(runspec)
        if version:
            with _left_out("version"):
                self.trusted.restore(version, head, now)

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""

    def _write(self, name: str, data: bytes) -> None:
        if document_hash(self._read(name)) == document_hash(data):
            return
        with writing(self._folder / name) as file:
            file.write(data)


def stored_run(folder: Path) -> bytes | None:
    """Return the id of the run whose Roots are in a folder, unverified; None: there is none."""
    for path in sorted(folder.glob("root.*")):
        with contextlib.suppress(Malformed):
            return decode_unverified(path.read_bytes()).run
    return None


@contextlib.contextmanager
def _left_out(what: str) -> Iterator[None]:
    """Skip a document of kind `what` that no longer verifies (rule 3)."""
    try:
        yield
    except P2PError as error:
        _log.warning("stored document no longer verifies, fetched again", record=what, reason=str(error))
