"""Coverage-guided fuzzing of untrusted input: `python tests/p2p/fuzz_messages.py [-runs=1000000] [atheris options]`.

Needs atheris. An input's first byte picks the reader of the rest: a wire type of any module, a sealed document, a
peer record, a chunk stream's frame, an invite, an announcement on the local network, a path of the HTTPS server, a
multiaddress, or a chunk with its proof for a payload on disk. It must be refused with an error of p2p.errors, or encode
to the same meaning again; a wrong chunk is never stored.
"""

import contextlib
import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["echo2.p2p", "echo2.protocol"]):
    from echo2 import protocol
    from echo2.p2p import discovery, envelope
    from echo2.p2p.discovery import mdns, peer_records
    from echo2.p2p.discovery.invite import Invite
    from echo2.p2p.errors import BadChunk, P2PError
    from echo2.p2p.https import routes
    from echo2.p2p.identity import generate_key
    from echo2.p2p.limits.party import subnet_of
    from echo2.p2p.multiaddr import address_of, pack, parse, unpack
    from echo2.p2p.swarm import messages as wire
    from echo2.p2p.swarm.manifest import chunk_span, manifest_of
    from echo2.p2p.swarm.payload_file import PartialPayload, PayloadFile
    from echo2.p2p.wire_types import Wire, decode, encode
    from tests.support.fuzz_seeds import write_seeds

KEY, RUN = generate_key(), bytes(32)
MODULES = [
    importlib.import_module(f"{room.__name__}.{name}")
    for room in (protocol, discovery)
    for _, name, _ in pkgutil.iter_modules(room.__path__)
]
TYPES = sorted(
    {kind for module in MODULES for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Wire)}
    - {Wire},
    key=lambda kind: (kind.__module__, kind.__name__),
)
"""Every wire type of the two rooms that have some."""
_folder = Path(tempfile.mkdtemp())
(_folder / "whole").write_bytes(bytes(range(251)) * 300)
MANIFEST = manifest_of(_folder / "whole")
WHOLE = PayloadFile.open(MANIFEST, _folder / "whole")
PART = PartialPayload(MANIFEST, _folder / "part")


def message(kind: type[Wire]) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        decoded = decode(data, kind)
        assert decode(encode(decoded), kind) == decoded

    return read


def sealed(data: bytes) -> None:
    decoded = envelope.decode_unverified(data)
    assert envelope.signed_bytes(decoded.kind, decoded.run, decoded.payload)
    envelope.verify_envelope(data, decoded.kind, RUN, {KEY.public_key().public_bytes_raw()})
    raise AssertionError("a signature out of nothing")


def from_downloader(data: bytes) -> None:
    decoded = wire.decode_from_downloader(data)
    assert wire.decode_from_downloader(wire.encode(decoded)) == decoded


def from_holder(data: bytes) -> None:
    decoded = wire.decode_from_holder(data)
    assert wire.decode_from_holder(wire.encode(decoded)) == decoded
    if isinstance(decoded, wire.Have):
        wire.unpack_bitmap(decoded.bitmap, MANIFEST.length // MANIFEST.chunk_size + 1)


def chunk(data: bytes) -> None:
    """Store a true chunk with some bytes changed. The input picks the chunk, the place and the change, and how much of
    its end is missing."""
    if len(data) < 4:
        return
    index = data[0] % WHOLE.chunks
    read_chunk = WHOLE.read(index)
    assert read_chunk is not None
    bad = bytearray(read_chunk[0] + b"".join(read_chunk[1]))
    place = int.from_bytes(data[1:3], "little") % len(bad)
    bad[place] ^= data[3]
    size = chunk_span(MANIFEST, index)[1]
    body, rest = bytes(bad[:size]), bytes(bad[size:])
    proof = [rest[at : at + 32] for at in range(0, len(rest), 32)]
    if len(data) > 4:
        proof = proof[: data[4] % (len(proof) + 1)]
    try:
        PART.put(index, body, proof)
    except BadChunk:
        return
    assert body == read_chunk[0], "a wrong chunk was stored"


def text(read: Callable[[str], object]) -> Callable[[bytes], None]:
    return lambda data: read(data.decode(errors="replace")) and None


def address(text: str) -> None:
    """Parse as an untrusted hint, and with the error that tells what is wrong."""
    one = address_of(text)
    assert one.text == text
    asked = one.route, one.peer, one.relay, one.endpoint, one.ip, one.port, one.is_listening, one.https_url
    assert asked[0] in ("direct", "relay", "https")
    assert parse(text) == one


def record(data: bytes) -> None:
    """Read a peer record as one of this peer's disk, then as one of any peer."""
    assert peer_records.decode_own(data).sealed == data
    peer_records.verify(data, RUN, 1 << 41)
    raise AssertionError("a signature out of nothing")


def binary_address(data: bytes) -> None:
    assert pack(unpack(data)) == data


def announcement(data: bytes) -> None:
    """Read the entries of a TXT record, which a line break separates."""
    entries = (line.partition(b"=") for line in data.split(b"\n"))
    read = mdns.parse({b"v": mdns.VERSION, **{key: value for key, _, value in entries}})
    assert read.name.isprintable()


READERS = [
    *map(message, TYPES), sealed, from_downloader, from_holder, chunk, record, binary_address, announcement,
    text(Invite.from_text), text(routes.read_chunks_path), text(address), text(subnet_of),
]  # fmt: skip


def test_one_input(data: bytes) -> None:
    if not data:
        return
    with contextlib.suppress(P2PError):
        READERS[data[0] % len(READERS)](data[1:])


def seeds(folder: Path) -> None:
    """Write valid bytes of each reader, from the golden vectors."""
    write_seeds(folder, len(READERS))
    for number, frame in enumerate(
        (wire.PayloadRequest(bytes(32)), wire.ChunkRequest((1, 2)), wire.HaveMore((3,)), wire.NotAvailable(4))
    ):
        for reader in range(len(TYPES), len(TYPES) + 3):
            (folder / f"frame-{number}-{reader}").write_bytes(bytes([reader]) + wire.encode(frame))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        atheris.Setup([*sys.argv, "-max_len=4096", corpus], test_one_input)
        atheris.Fuzz()
