"""Read the weights to which a chain of payloads leads, frame by frame, without a file of them.

1. A chain begins at a snapshot, or at nothing with the payload of a full edge. Each payload starts from the root to
   which the one before it leads; the headers are checked at once, the contents by whoever hashes what is read.
2. A frame is decoded when it is asked for, through all payloads of the chain. Decoding is pure, so any threads may ask
   together. Memory per thread: a frame, twice.
"""

from collections.abc import Sequence
from pathlib import Path

from echo2.weights.codec import frames
from echo2.weights.diff import bodies
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.ordered_map import in_order
from echo2.weights.payload_format import Frame, PayloadReader, frames_of, read_header
from echo2.weights.snapshot import Bits, Snapshot, WeightsSource, writing_snapshot


class VirtualSnapshot:
    """The weights at the end of a chain. `tensors`, `aliases`, `root`: the same as in a `Snapshot`."""

    def __init__(self, start: WeightsSource | None, payloads: Sequence[Path], root: bytes) -> None:
        """`start`: None: the first payload is full. `root`: that the chain leads to. Raises `WrongBase`, `BadPayload`,
        `FileNotFoundError`."""
        at = None if start is None else start.root
        tensors: list[TensorEntry] = [] if start is None else start.tensors
        aliases = {} if start is None else start.aliases
        self._start = start
        self._layers: list[dict[int, tuple[str, int, memoryview]]] = []
        for path in payloads:
            reader = PayloadReader(path)
            head = read_header(reader)
            if head.base_root != at:
                raise WrongBase(f"{path} does not start where the chain before it ends")
            if head.table is not None:
                if at is not None and head.table.tensors != tensors:
                    raise BadPayload("a diff renames or reshapes tensors")
                tensors, aliases = head.table.tensors, head.table.aliases
            self._layers.append(
                {frame.start: (frame.dtype, kind, body) for frame, kind, body in bodies(reader, tensors)}
            )
            at = head.root
        if at != root:
            raise WrongBase(f"the chain of payloads does not lead to {root.hex()[:16]}")
        self.tensors, self.aliases, self.root = tensors, aliases, root

    def span(self, start: int, elements: int, width: int) -> Bits:
        """Return the `elements` integers of the frame that begins at byte `start` of the data. Raises `BadPayload`."""
        bits = None if self._start is None else self._start.span(start, elements, width)
        for number, layer in enumerate(self._layers):
            dtype, kind, body = layer[start]
            patch = frames.decode(dtype, kind, body, bits, elements)
            if bits is not None and number and bits.flags.writeable:
                patch.apply_in_place(bits)  # its memory is that of the layer before
            else:
                bits = patch.bits if bits is None else patch.apply_to_copy(bits)
        assert bits is not None, "a chain from nothing begins with a full payload"
        return bits


def write_out(weights: WeightsSource, path: Path) -> Snapshot:
    """Write weights to the snapshot file `path`. Raises `BadSnapshot` where they do not have the root that they claim,
    `BadPayload`, `DiskFull`; `path` is then as it was."""

    def bits(frame: Frame) -> Bits:
        return weights.span(frame.start, frame.elements, frame.width)

    with writing_snapshot(path, weights.tensors, weights.aliases) as writer:
        for one in in_order(bits, frames_of(weights.tensors)):
            writer.write(one)
        if writer.finish() != weights.root:
            raise BadSnapshot(f"weights on disk are damaged: they do not have root {weights.root.hex()[:16]}")
    return Snapshot(path, root=weights.root)
