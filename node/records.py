"""What this node believes, on disk: verified again when it is read, durable before anything acts on it.

Rules
1. Roots, RunSpec, Head and Version lie as the sealed bytes that were received; at start they go through `TrustedSet`
   like bytes from a stranger, so a tampered folder cannot teach the node anything.
2. A file is whole or absent (weights.durable), and fsynced before `Records` returns.
3. Version is written before the Head that names it. What no longer verifies is left out, and said, except a Root: the
   chain from the invite must hold.
"""

from pathlib import Path

import structlog

from node.trust import TrustedSet
from p2p.envelope import document_hash
from p2p.errors import P2PError
from p2p.messages import Head, RunSpec
from weights.documents import Version
from weights.durable import writing

_log = structlog.get_logger("node")


class Records:
    """A `TrustedSet` with a folder behind it. Its methods are the set's; what they return is durable."""

    def __init__(self, folder: Path, run: bytes, root_hash: bytes) -> None:
        """Reads what the folder holds. Raises `WrongRoot` where its Roots are not the invite's."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self.trusted = TrustedSet(run, root_hash)
        for path in sorted(folder.glob("root.*")):
            self.trusted.update_root(path.read_bytes())
        if self.trusted.root is not None:
            self._restore()

    def update_roots(self, roots: list[bytes], now: int) -> None:
        """Take a chain of Roots from the first on. Raises as `TrustedSet.update_root` and `check_root`."""
        for sealed in roots:
            self.trusted.update_root(sealed)
        for serial, sealed in enumerate(self.trusted.roots):
            self._write(f"root.{serial:06d}", sealed)
        self.trusted.check_root(now)

    def update_runspec(self, sealed: bytes) -> RunSpec:
        """See `TrustedSet.update_runspec`."""
        runspec = self.trusted.update_runspec(sealed)
        self._write("runspec", self.trusted.runspec_sealed)
        return runspec

    def offer_head(self, sealed: bytes, now: int) -> Head:
        """See `TrustedSet.offer_head`."""
        head = self.trusted.offer_head(sealed, now)
        if self.trusted.head_sealed:
            self._write("head", self.trusted.head_sealed)
        return head

    def update_version(self, head_sealed: bytes, version_sealed: bytes, now: int) -> Version:
        """See `TrustedSet.update_version`."""
        version = self.trusted.update_version(head_sealed, version_sealed, now)
        self._write("version", version_sealed)
        self._write("head", head_sealed)
        return version

    def _restore(self) -> None:
        runspec, head, version = (self._read(name) for name in ("runspec", "head", "version"))
        try:
            if runspec:
                self.trusted.update_runspec(runspec)
            if version:
                self.trusted.restore(version, head)
        except P2PError as error:
            _log.warning("records on disk no longer verify, and are fetched anew", reason=str(error))

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""

    def _write(self, name: str, data: bytes) -> None:
        if document_hash(self._read(name)) == document_hash(data):
            return
        with writing(self._folder / name) as file:
            file.write(data)
