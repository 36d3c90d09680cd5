"""Coverage-guided fuzzing of files and documents: `python tests/weights/fuzz_files.py [-runs=N] [atheris options]`.

Needs atheris. An input's first byte picks the reader of the rest: a document about weights, the header of a safetensors
file, a submitted group, the evidence against a node that the database holds, a learner's share of a batch, the state
that the page's API gives, or the text of a run's tasks. It must be refused with the error that the reader names, or
encode to the same meaning again.
"""

import contextlib
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(
    include=["echo2.weights", "echo2.coordinator.rollouts", "echo2.coordinator.learner.batches.share_codec"]
):
    import msgspec
    import numpy as np

    from echo2.coordinator.learner.batches.share_codec import decode_share, encode_share
    from echo2.coordinator.metrics import status
    from echo2.coordinator.run.task_mix import parse_mix
    from echo2.coordinator.verification.evidence import NodeEvidence
    from echo2.coordinator.verification.submitted_group import decode_group, decode_ids, lease_of
    from echo2.p2p.errors import P2PError
    from echo2.runtime.errors import LocalFault
    from echo2.runtime.settings import SettingsFault
    from echo2.tasks.turn_ends import token_list
    from echo2.weights import documents, safetensors_header
    from echo2.weights.documents import Document
    from echo2.weights.errors import WeightsError
    from tests.support.fuzz_seeds import write_seeds

KINDS = [
    kind
    for kind in vars(documents).values()
    if isinstance(kind, type) and issubclass(kind, Document) and kind is not Document
]
REFUSALS = (P2PError, WeightsError, SettingsFault, LocalFault, msgspec.MsgspecError)


def document(kind: type[Document]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        decoded = kind.from_bytes(data)
        assert kind.from_bytes(decoded.to_bytes()) == decoded

    return read


def header(data: bytes) -> None:
    """Read a header of a file whose size the input picks; its tensors fill the file without a hole."""
    if len(data) < 4:
        return
    size = struct.unpack("<I", data[:4])[0]
    read = safetensors_header.parse(data[4:], size)
    assert all(8 + len(data) - 4 <= offset <= size for offset in read.offsets)


def group(data: bytes) -> None:
    decoded = decode_group(data)
    assert lease_of(data) == decoded.lease
    for rollout in decoded.rollouts:
        assert (np.array(msgspec.msgpack.decode(rollout.packed, type=list[int])) == rollout.tokens).all()


def ids(data: bytes) -> None:
    if data:
        assert msgspec.msgpack.decode(data, type=list[int]) == token_list(decode_ids(data))


def evidence(data: bytes) -> None:
    """Read the fixed length that this coordinator writes: no other bytes are ever given."""
    length = len(NodeEvidence().encode())
    assert len(NodeEvidence.decode(data[:length].ljust(length, b"\0")).encode()) == length


def share(data: bytes) -> None:
    with contextlib.suppress(ValueError):  # bytes that are no whole number of items: the sender is our own rank
        encode_share(decode_share(data))


def tasks(data: bytes) -> None:
    assert parse_mix(data.decode(errors="replace"))


READERS = [*map(document, KINDS), header, group, ids, evidence, share, status.decode, tasks]


def test_one_input(data: bytes) -> None:
    if not data:
        return
    with contextlib.suppress(*REFUSALS):
        READERS[data[0] % len(READERS)](data[1:])


def seeds(folder: Path) -> None:
    """Write the golden vectors, a header, and the text of a mix, for each reader."""
    write_seeds(folder, len(READERS))
    text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (folder / "header").write_bytes(bytes([len(KINDS)]) + struct.pack("<I", 16 + len(text)) + text)
    (folder / "tasks").write_bytes(bytes([len(READERS) - 1]) + b"3 add + reverse")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        atheris.Setup([*sys.argv, "-max_len=4096", corpus], test_one_input)
        atheris.Fuzz()
