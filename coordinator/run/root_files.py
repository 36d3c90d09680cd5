"""Read the files of a run's Roots, and the run's id from the first of them. It loads no settings and no engine."""

from pathlib import Path
from typing import Annotated

import msgspec

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.settings.named_home import no_run_in
from echo2.runtime.errors import LocalFault


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The first two fields of `Envelope` of p2p/envelope.py, whose import would load the library of the signatures."""

    kind: str
    run: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


def run_id(place: RunFolder) -> bytes:
    """Return the id of a folder's run, 32 bytes, as its first Root has it. No signature is verified: the id only tells
    this run from another one. Raises `LocalFault`."""
    first = root_files(place)[0]
    try:
        return msgspec.msgpack.decode(read_document(first), type=_Envelope).run
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LocalFault(f"{first} is damaged ({error}): put it back from your backup") from error


def root_files(place: RunFolder) -> list[Path]:
    """Return the paths of 1.root, 2.root ... Raises `LocalFault` for a gap: the Roots behind it are in force."""
    files: list[Path] = []
    while (path := place.roots / f"{len(files) + 1}.root").exists():
        files.append(path)
    if not files and not place.config.exists() and not place.runspec.exists():
        raise LocalFault(no_run_in(place.path))
    if not files:
        raise LocalFault(f"no Root in {place.roots}: put 1.root back from your backup")
    serials = [int(path.stem) for path in place.roots.glob("*.root") if path.stem.isdecimal()]
    if max(serials) > len(files):
        missing = place.roots / f"{len(files) + 1}.root"
        raise LocalFault(f"{missing} is missing, and Root {max(serials)} is there: put it back from your backup")
    return files


def read_document(path: Path) -> bytes:
    """Return the bytes of a signed document. Raises `LocalFault`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}; put it back from your backup") from error
