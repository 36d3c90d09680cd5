"""The file of a whole run: a tar of its files, a manifest with their hashes, and its private files, encrypted.

    coordinator.toml, root/1.root, run.sqlite, store/..., learner/...    as in the run folder
    manifest.json    ArchiveManifest: size and BLAKE3 of each of them
    sealed           keys/ and payouts/: SealedHeader, then the files, encrypted under a passphrase

Rules
1. The encryption is ChaCha20-Poly1305 with a key that scrypt makes from the passphrase. It authenticates the hash of
   the manifest: who lacks the passphrase can change no file of an archive unseen.
2. A reader names the first thing that is wrong and writes no file outside its folder: names are relative, without "..",
   and nothing but plain files is taken, each once: a sparse one may be larger than the archive.
3. The memory that a header may ask of scrypt is bounded.
"""

import contextlib
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, NamedTuple

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from echo2.runtime.errors import LocalFault
from echo2.runtime.files import room

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
SEALED: Final = "sealed"
LEAST_PASSPHRASE: Final = 8
"""Characters."""
_WORK: Final = 1 << 16
"""Cost of scrypt: 64 MiB of memory."""
_MOST_WORK: Final = 1 << 20
_MOST_MEMBERS: Final = 1_000_000
_PIECE_BYTES: Final = 4 << 20


class ArchiveManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an archive. `run`: the run's id, hex. `at`: when it was written, ms. `files`: size and
    BLAKE3 in hex."""

    format: int
    run: str
    at: int
    files: dict[str, tuple[int, str]]


class SealedHeader(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a sealed part. `work`: cost of scrypt. `manifest`: BLAKE3 of manifest.json."""

    format: int
    work: int
    salt: bytes
    nonce: bytes
    manifest: bytes


class ArchivedFile(NamedTuple):
    """A file to be archived: its name, its open content and its size."""

    name: str
    content: BinaryIO
    size: int


def seal(files: Mapping[str, bytes], passphrase: str, manifest: bytes) -> bytes:
    """Encrypt files by name (rule 1). `manifest`: bytes of manifest.json."""
    header = msgspec.msgpack.encode(
        SealedHeader(FORMAT, _WORK, os.urandom(16), os.urandom(12), blake3(manifest).digest())
    )
    return msgspec.msgpack.encode((header, _cipher(header, passphrase)(msgspec.msgpack.encode(files), True)))


def unseal(data: bytes, passphrase: str, source: Path) -> tuple[dict[str, bytes], SealedHeader]:
    """Decrypt what `seal` encrypted. `source`: the file, for the message. Raises `LocalFault`."""
    try:
        header, encrypted = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
        opened = msgspec.msgpack.decode(header, type=SealedHeader)
        if not (opened.format == FORMAT and 1 < opened.work <= _MOST_WORK and opened.work.bit_count() == 1):
            raise LocalFault(
                f"{source} is an archive of another build of echo2, or damaged: restore it with that build"
            )
        files = msgspec.msgpack.decode(_cipher(header, passphrase)(encrypted, False), type=dict[str, bytes])
    except InvalidTag as error:
        raise LocalFault(f"the passphrase is not that of {source}, or the file is damaged") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise LocalFault(f"{source} is damaged at its private files: take another archive") from error
    return files, opened


def _cipher(header: bytes, passphrase: str) -> Callable[[bytes, bool], bytes]:
    """Return a function that encrypts (True) or decrypts, and authenticates the header with it."""
    parts = msgspec.msgpack.decode(header, type=SealedHeader)
    cipher = ChaCha20Poly1305(Scrypt(parts.salt, 32, parts.work, 8, 1).derive(passphrase.encode()))
    return lambda data, encrypts: (cipher.encrypt if encrypts else cipher.decrypt)(parts.nonce, data, header)


def write(
    file: BinaryIO, members: Iterator[ArchivedFile], private: Mapping[str, bytes], run: bytes, passphrase: str, now: int
) -> int:
    """Write an archive to `file`; return how many files it has. `now`: ms. Raises `LocalFault`, OSError."""
    listed = dict[str, tuple[int, str]]()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content, size in members:
            hashing = _Hashing(content)
            try:
                tar.addfile(_entry(name, size), hashing)  # type: ignore[arg-type]  # it calls read alone
            except OSError as error:
                if error.errno is None:  # tarfile's own: the content ended before its size
                    raise LocalFault(f"{name} became shorter while it was copied: try again") from error
                raise
            listed[name] = (size, hashing.hash.hexdigest())
        manifest = msgspec.json.encode(ArchiveManifest(format=FORMAT, run=run.hex(), at=now, files=listed))
        for name, data in ((MANIFEST, manifest), (SEALED, seal(private, passphrase, manifest))):
            tar.addfile(_entry(name, len(data)), _Bytes(data))  # type: ignore[arg-type]
    return len(listed) + len(private)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


class _Hashing:
    """A file that hashes what is read of it."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content, self.hash = content, blake3()

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        data = self._content.read(size)
        self.hash.update(data)
        return data


class _Bytes:
    """Bytes that are read as a file is."""

    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        data, self._left = self._left[:size], self._left[size:]
        return bytes(data)


class Archive:
    """An archive that is read: its manifest is checked, its private files are decrypted. `sealed`: the sealed part."""

    def __init__(self, path: Path, tar: tarfile.TarFile, passphrase: str) -> None:
        """Raises `LocalFault`."""
        self.path, self._tar = path, tar
        self._entries = dict[str, tarfile.TarInfo]()
        for entry in tar:
            plain = entry.isreg() and not entry.issparse() and entry.name not in self._entries
            if not plain or not _is_inside(entry.name) or len(self._entries) >= _MOST_MEMBERS:
                raise LocalFault(f"{path} has {entry.name[:200]!r}, which no archive of echo2 has: nothing is restored")
            self._entries[entry.name] = entry
        manifest, self.sealed = self._read(MANIFEST), self._read(SEALED)
        try:
            self.manifest = msgspec.json.decode(manifest, type=ArchiveManifest)
        except (msgspec.MsgspecError, ValueError) as error:
            raise LocalFault(f"{path} is damaged at {MANIFEST}: take another archive") from error
        self.private, header = unseal(self.sealed, passphrase, path)
        if blake3(manifest).digest() != header.manifest or not all(map(_is_inside, self.private)):
            raise LocalFault(f"{path} is damaged at {MANIFEST}: take another archive")
        if missing := self.manifest.files.keys() - self._entries.keys():
            raise LocalFault(f"{path} lacks {min(missing)}: take another archive")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.manifest.files.values())

    def extract(self, folder: Path | None) -> None:
        """Check each file, and write it into `folder`, durably; None: only check. Raises `LocalFault`, OSError."""
        for name, (size, expected) in self.manifest.files.items():
            content, hashed, left = self._tar.extractfile(self._entries[name]), blake3(), size
            assert content is not None, "a plain file"
            with contextlib.ExitStack() as closing:
                closing.enter_context(content)
                target = None if folder is None else closing.enter_context(create_private(folder / name))
                while left and (piece := content.read(min(left, _PIECE_BYTES))):
                    hashed.update(piece)
                    left -= len(piece)
                    if target is not None:
                        target.write(piece)
            if left or self._entries[name].size != size or hashed.hexdigest() != expected:
                raise LocalFault(f"{self.path} is damaged at {name}: take another archive")

    def _read(self, name: str) -> bytes:
        entry = self._entries.get(name)
        content = None if entry is None else self._tar.extractfile(entry)
        if content is None:
            raise LocalFault(f"{self.path} ends before {name}: it is cut off, or not by `echo2-coord backup`")
        with content:
            return content.read()


def _is_inside(name: str) -> bool:
    """Tell whether a name stays inside a folder (rule 2)."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


@contextlib.contextmanager
def create_private(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that only its owner may read, in folders of the same kind, and make it durable at the end. Raises
    `DiskFull`, OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with room(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def reading(path: Path, passphrase: str) -> Iterator[Archive]:
    """Open an archive. Raises `LocalFault`."""
    if not path.is_file():
        raise LocalFault(f"there is no file {path}")
    with contextlib.ExitStack() as closing:
        try:
            archive = Archive(path, closing.enter_context(tarfile.open(path, "r:")), passphrase)
        except (tarfile.TarError, EOFError, ValueError, OverflowError, MemoryError) as error:  # sizes that are none too
            raise _no_archive(path, error) from error
        try:
            yield archive
        except (tarfile.TarError, EOFError) as error:
            raise _no_archive(path, error) from error


def _no_archive(path: Path, error: Exception) -> LocalFault:
    return LocalFault(f"{path} is not an archive by `echo2-coord backup`, or is cut off: {error}")
