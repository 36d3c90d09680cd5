"""The changes that a diff makes, read from its payload alone."""

from collections.abc import Iterator
from pathlib import Path

from echo2.weights.diff import Change, by_tensor, open_payload, patches
from echo2.weights.payload_format import PayloadReader
from echo2.weights.snapshot import Snapshot


def changed(base: Snapshot, payload: Path) -> Iterator[Change]:
    """Yield the changes that a diff makes to `base`, frame by frame; tensors without a change do not appear. An alias
    is not listed. Raises `BadPayload`, `WrongBase`."""
    reader = PayloadReader(payload)
    table = open_payload(reader, base, None)
    for frame, patch in patches(reader, base, table.tensors, 1):
        index, bits = patch.changes(base.span(frame.start, frame.elements, frame.width))
        yield from by_tensor(frame, index, bits)
