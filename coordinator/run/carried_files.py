"""Read and write the small files that an operator carries between machines to have them signed."""

from pathlib import Path

from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing


def read_carried(path: Path, most: int) -> bytes:
    """Return a file's bytes, at most `most` and one more, by which a reader sees that it is too long. Raises
    `LocalFault`."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error


def write_carried(path: Path, data: bytes) -> None:
    """Write a file in one step. Raises `LocalFault`."""
    try:
        with writing(path) as file:
            file.write(data)
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}") from error
