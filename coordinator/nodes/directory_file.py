"""`echo2-coord directory`: a signed list of runs (protocol/run_directory.py), from a file of TOML."""

import json
from pathlib import Path

import msgspec

from echo2.p2p.identity import load_or_create_key, public_bytes
from echo2.protocol.run_directory import BadDirectory, ListedRun, write
from echo2.runtime.figures import number_of
from echo2.runtime.files import writing
from echo2.runtime.settings import read_toml
from echo2.runtime.units import DAY


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file of TOML."""

    runs: list[ListedRun]


def write_directory(source: Path, out: Path, key_file: Path, days: int, now: int) -> list[str]:
    """Write the list, with a sequence number above that of the list before; return lines for the author. `now`: ms.
    Raises `LocalFault`."""
    try:
        runs = msgspec.convert(read_toml(source), _Source).runs
    except FileNotFoundError:
        raise BadDirectory(f"there is no file {source}: write [[runs]] with an invite each into it") from None
    except msgspec.ValidationError as error:
        raise BadDirectory(f"{source}: {error}; each [[runs]] has an invite, and may have name, description, model, "
                           "task, state, page") from error  # fmt: skip
    key = load_or_create_key(key_file, None)
    sequence = _sequence_of(out) + 1
    data = write(runs, key, sequence, now, now + days * DAY)
    with writing(out) as file:
        file.write(data)
    return [
        f"list {sequence} of {number_of(len(runs), 'run')} is in {out}, good for {number_of(days, 'day')}",
        f"host it anywhere, and name it to volunteers as URL#{public_bytes(key).hex()}",
    ]


def _sequence_of(out: Path) -> int:
    """Return the sequence number of the list there; 0: there is none. Raises `BadDirectory` for any other file."""
    try:
        return int(json.loads(out.read_bytes())["sequence"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadDirectory(f"{out} is no directory, and is not replaced: name another file") from error
