"""Valid bytes for the fuzzers' first inputs: every hexadecimal text of the golden vectors."""

from pathlib import Path

import msgspec

from tests.support.paths import ROOT

LONGEST = 8000
"""Most hexadecimal digits of a seed."""


def write_seeds(folder: Path, readers: int) -> None:
    """Write each golden sample once per reader, whose number is the first byte."""
    for path in (ROOT / "tests" / "vectors").glob("*.json"):
        for number, sample in enumerate(_hexadecimal(msgspec.json.decode(path.read_bytes()))):
            for reader in range(readers):
                (folder / f"{path.stem}-{number}-{reader}").write_bytes(bytes([reader]) + sample)


def _hexadecimal(node: object) -> list[bytes]:
    if isinstance(node, dict):
        return [data for value in node.values() for data in _hexadecimal(value)]
    if isinstance(node, list):
        return [data for value in node for data in _hexadecimal(value)]
    try:
        return [bytes.fromhex(node)][: len(node) < LONGEST] if isinstance(node, str) else []
    except ValueError:
        return []
