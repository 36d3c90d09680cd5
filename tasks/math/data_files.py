"""Files of problems: a folder's files, the split of each by its name, and the rows of a file.

Rules
1. A file is JSONL, a JSON array, CSV or Parquet by its ending; behind one of the first three `.gz` may stand. Files
   with other endings, hidden ones and those of `METADATA_NAMES` are left out. Folders in a folder are read too.
2. The split of a folder's file is what the first word of its name says, or else the name of the folder that it is in.
   Names that say two splits are refused, and so is a file that says none beside files that do: a guess would train on
   a test. One file by itself has no split, whatever its name.
3. A row of JSONL is read without the rest of its file, up to `LONGEST_ROW` bytes; so are a row of CSV and an element
   of a JSON array, in characters. What a file says of its size counts for nothing: a few bytes may stand for many.
4. A value of a Parquet file may stand for many rows. So few rows are read at a time that `MOST_BATCH_BYTES` suffice if
   each has the largest value that its row group has room for. What the file says of that room, and of the values in a
   row, may be false: a batch takes `MOST_MEMORY`, or the file is refused before more is taken (Linux alone:
   runtime/address_space.py).
"""

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path, PurePath
from typing import IO, Any, Final, Literal, NamedTuple, cast

from echo2.runtime.address_space import at_most
from echo2.runtime.printable import printable

FileSplit = Literal["train", "heldout", "test"]
SPLIT_WORDS: Final[dict[str, FileSplit]] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("heldout", "held", "validation", "valid", "val", "dev", "eval", "evaluation"), "heldout"),
    **dict.fromkeys(("test", "testing"), "test"),
}
METADATA_NAMES: Final = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
MOST_FILES: Final = 10_000
LONGEST_ROW: Final = 6_400_000
"""Most bytes of a row of JSONL, which may have keys that are not read; most characters of a row of CSV."""
MOST_GROUP_BYTES: Final = 1 << 30
"""Most bytes of a row group of a Parquet file, of the columns that are read."""
MOST_BATCH_BYTES: Final = 1 << 28
MOST_MEMORY: Final = 1 << 30
"""Most bytes of memory for a batch of rows of a Parquet file: its pages, its values and their texts in Python."""
_READ_CHARACTERS: Final = 1 << 16
_NO_BLANK: Final = re.compile(r"\S")
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class DataFault(ValueError):
    """The data cannot be used; the message names file and row, and says why."""


class DataFile(NamedTuple):
    """A file. `name`: path within the folder that was named. `split`: None: no name says one."""

    path: Path
    name: str
    split: FileSplit | None


def files_of(path: Path) -> list[DataFile]:
    """Return the files of a path, ordered by name (rules 1 and 2). Raises `DataFault`."""
    if path.is_file() and _ending(path):
        return [DataFile(path, path.name, None)]
    if not path.exists():
        raise DataFault(f"there is nothing at {path}: correct the path")
    if not path.is_dir():
        raise DataFault(f"{path} is no folder, and no file that ends with {', '.join(ENDINGS)}")
    files = [DataFile(path / name, str(name), split_of(name)) for name in sorted(_names(path))]
    if not files:
        raise DataFault(f"{path} has no file that ends with {', '.join(ENDINGS)}")
    unsaid = next((file for file in files if file.split is None), None)
    said = next((file for file in files if file.split is not None), None)
    if unsaid is not None and (said is not None or _SHARD.search(_stem(PurePath(unsaid.name)))):
        raise DataFault(
            f"{unsaid.name} of {path} does not say its split{f', as {said.name} does' if said else ''}: let its name "
            f"begin with one of {', '.join(SPLIT_WORDS)}, or move it away"
        )
    return files


def split_of(name: PurePath) -> FileSplit | None:
    """Return the split that a file's path within its folder says; None: none (rule 2). Raises `DataFault` for two."""
    words = [_stem(name), *reversed(name.parts[:-1])]
    first_words = (re.match(r"[a-z]+", word.lower()) for word in words)
    said = {SPLIT_WORDS[word[0]]: word[0] for word in first_words if word and word[0] in SPLIT_WORDS}
    if len(said) > 1:
        raise DataFault(f"{name} says two splits, {' and '.join(sorted(said.values()))}: let its path say one")
    return next(iter(said), None)


def rows_of(file: DataFile, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each row; numbers begin at 1. `columns`: the keys that are looked at, in small letters:
    a Parquet file's others are not read. Raises `DataFault`."""
    if not file.path.is_file():
        raise DataFault(f"{file.name} is no file: give it another name, or remove it")
    ending = _ending(file.path)
    try:
        if ending == ".parquet":
            yield from _parquet(file, columns)
            return
        with _open(file.path, ending) as stream:
            yield from _READERS[ending](file, stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataFault(f"{file.name} is no gzip file, or a damaged one: {error}") from error
    except OSError as error:
        raise DataFault(f"{file.name} cannot be read: {error.strerror or error}") from error


def _open(path: Path, ending: str) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if ending.endswith(".gz") else path.open("rb")


def _names(folder: Path) -> list[PurePath]:
    names = list[PurePath]()
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = PurePath(os.path.relpath(place, folder))
        names += [here / name for name in files if not name.startswith(".") and name not in METADATA_NAMES]
        names = [name for name in names if _ending(name)]
        if len(names) > MOST_FILES:
            raise DataFault(f"{folder} has more than {MOST_FILES} files: join them, or name a smaller folder")
    return names


def _ending(path: PurePath) -> str:
    """Return the ending by which a file is read; empty: it is not."""
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), "")


def _stem(name: PurePath) -> str:
    return name.name[: -len(_ending(name))]


def _jsonl(file: DataFile, stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    for number, row in enumerate(iter(lambda: stream.readline(LONGEST_ROW + 1), b""), start=1):
        if len(row) > LONGEST_ROW:
            raise DataFault(f"{file.name} row {number} has more than {LONGEST_ROW} bytes: write a row per problem")
        if number == 1:
            row = row.removeprefix(_BYTE_ORDER_MARK)
        if not row.strip():
            continue
        try:
            yield number, json.loads(row)
        except (ValueError, RecursionError) as error:
            raise DataFault(f"{file.name} row {number} is no JSON: {error}"[:300]) from error


def _json(file: DataFile, stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of an array, or of JSONL under the name of JSON."""
    begin = stream.read(4096)
    stream.seek(0)
    if not begin.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"["):
        yield from _jsonl(file, stream)
        return
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    number = 0
    try:
        for number, value in enumerate(_elements(text), start=1):
            yield number, value
    except (ValueError, RecursionError) as error:
        raise DataFault(f"{file.name} row {number + 1} is no JSON: {error}"[:300]) from error
    finally:
        text.detach()  # whoever opened the stream closes it


def _elements(text: io.TextIOWrapper) -> Iterator[Any]:
    """Yield the elements of a JSON array, of which one at a time is in memory (rule 3). Raises ValueError."""
    decode = json.JSONDecoder().raw_decode
    known = text.read(_READ_CHARACTERS).lstrip()
    value, place, divider = None, 1, "["
    while divider != "]":
        try:
            after_blanks = _NO_BLANK.search(known, place)
            place = after_blanks.start() if after_blanks else len(known)
            if divider == "[" and known.startswith("]", place):
                return
            value, end = decode(known, place)
            behind = _NO_BLANK.search(known, end)
            fault = "the array has no end"
        except json.JSONDecodeError as error:
            behind, fault = None, error.msg
        if behind is None:
            known, place = known[place:], 0
            more = "" if len(known) > LONGEST_ROW else text.read(max(len(known), _READ_CHARACTERS))
            if not more:
                long = f", or it has more than {LONGEST_ROW} characters" if len(known) > LONGEST_ROW else ""
                raise ValueError(f"{fault}{long}")
            known += more
            continue
        divider, place = behind[0], behind.end()
        if divider not in ",]":
            raise ValueError(f"{divider!r} stands behind it")
        yield value
    if known[place:].strip() or text.read(_READ_CHARACTERS).strip():
        raise ValueError("the array has an end, and more stands behind it")


def _csv(file: DataFile, stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    csv.field_size_limit(LONGEST_ROW)
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    try:
        lines = _Lines(file, text)
        for number, row in enumerate(csv.DictReader(lines), start=1):
            lines.of_row = 0
            yield number, {key: value for key, value in row.items() if key is not None}
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataFault(f"{file.name} is no CSV file in UTF-8: {error}"[:300]) from error
    finally:
        text.detach()  # whoever opened the stream closes it


class _Lines(Iterator[str]):
    """The lines of a file, of which a row may take several. `of_row`: characters of the row that is being read."""

    def __init__(self, file: DataFile, text: io.TextIOWrapper) -> None:
        self._file, self._text = file, text
        self.of_row = self._number = 0

    def __next__(self) -> str:
        row = self._text.readline(LONGEST_ROW + 1)
        if not row:
            raise StopIteration
        self.of_row, self._number = self.of_row + len(row), self._number + 1
        if self.of_row > LONGEST_ROW:
            raise DataFault(
                f"{self._file.name} line {self._number}: its row has more than {LONGEST_ROW} characters: divide it"
            )
        return row


def _parquet(file: DataFile, columns: Collection[str]) -> Iterator[tuple[int, Any]]:
    # Another allocator would reserve a GiB of the address space at its first use, and allocate in that afterwards.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import pyarrow
    import pyarrow.parquet

    pyarrow.allocate_buffer(1)  # the first use, where it was imported before
    number = 0
    try:
        with at_most(MOST_MEMORY):
            table = pyarrow.parquet.ParquetFile(file.path)
        with table:
            for rows in _limit_memory(_batches(file, table, columns)):
                for row in rows:
                    number += 1
                    yield number, row
    except MemoryError as error:
        raise DataFault(
            f"{file.name} needs more than {MOST_MEMORY} bytes of memory for some rows behind row {number}: write it in "
            "smaller row groups, if it is no damaged one"
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _no_parquet(file, error) from error  # Arrow's own, of damaged pages
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:  # text that is none, dates beyond Python's
        raise _no_parquet(file, error) from error


def _no_parquet(file: DataFile, error: Exception) -> DataFault:
    why = printable(" ".join(str(error).split()))[:300].rstrip(".")
    return DataFault(f"{file.name} is no Parquet file, or a damaged one ({why}): write or download it again")


def _batches(file: DataFile, table: Any, columns: Collection[str]) -> Iterator[list[Any]]:
    names = [name for name in table.schema_arrow.names if name.lower() in columns]
    for group in range(table.num_row_groups):
        most = _rows_at_a_time(file, table.metadata.row_group(group), names)
        for batch in table.iter_batches(most, [group], names, use_threads=False):
            yield batch.to_pylist()


def _limit_memory(batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """Yield batches, each made within `MOST_MEMORY` (rule 4). Raises MemoryError beyond."""
    while True:
        with at_most(MOST_MEMORY):
            rows = next(batches, None)
        if rows is None:
            return
        yield rows


def _rows_at_a_time(file: DataFile, group: Any, names: Collection[str]) -> int:
    """Return how many rows of a row group are read at a time (rule 4). Raises `DataFault`."""
    columns = [group.column(index) for index in range(group.num_columns)]
    size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema.partition(".")[0] in names)
    if size > MOST_GROUP_BYTES:
        raise DataFault(f"{file.name} has a row group of more than {MOST_GROUP_BYTES} bytes: write it in smaller ones")
    return max(1, min(1 << 16, MOST_BATCH_BYTES // max(1, int(size))))


_READERS: Final = {
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".json": _json,
    ".json.gz": _json,
    ".csv": _csv,
    ".csv.gz": _csv,
}
ENDINGS: Final = (*_READERS, ".parquet")
