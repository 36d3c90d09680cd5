"""Keys of a run, and documents signed with them, for tests of the trusted set and its store."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey as Key

from echo2.p2p.envelope import document_hash, seal
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root, RunSpec, TaskReference
from echo2.protocol.versions import Head
from echo2.weights.documents import Edge, EdgeIndex, TensorEntry, Version

RUN, NOW, YEAR = b"r" * 32, 1_000_000, 365 * 24 * 3600_000


def roles(**keys: Key) -> dict[str, RoleKeys]:
    return {name: RoleKeys(keys=[public_bytes(key)], threshold=1) for name, key in keys.items()}


@dataclass
class Operator:
    """Keys of a run, and documents signed with them; a test may falsify every field."""

    root: Key = field(default_factory=generate_key)
    policy: Key = field(default_factory=generate_key)
    channel: Key = field(default_factory=generate_key)
    ledger: Key = field(default_factory=generate_key)

    def root_document(self, serial: int = 0, *signers: Key, run: bytes = RUN, expires: int = YEAR) -> bytes:
        own = roles(root=self.root, policy=self.policy, channel=self.channel, ledger=self.ledger)
        document = Root(run=run, serial=serial, roles=own, expires=expires, issued=0)
        return seal("root", run, encode(document), *(signers or (self.root,)))

    def runspec(self, name: str = "run", key: Key | None = None) -> bytes:
        spec = RunSpec(
            run=RUN, name=name, model="m", assets=[], eos=1, vocabulary=16,
            tasks=[TaskReference(name="reverse", version=1)], staleness=4, group_size=2, limit=8,
            compute_dtype="float32", engines=["x"], sampling="g", price_mode="points",
        )  # fmt: skip
        return seal("runspec", RUN, encode(spec), key or self.root)

    def version(self, number: int, era: int = 1, *, root: bytes | None = None, key: Key | None = None) -> bytes:
        table = [TensorEntry(name="t", dtype="BF16", shape=(2,))]
        document = Version(era=era, version=number, root=root or bytes([number]) * 32, tensors=table)
        return seal("version", RUN, document.to_bytes(), key or self.policy)

    def edge(self, number: int, era: int = 1, *, root: bytes | None = None, key: Key | None = None) -> bytes:
        document = Edge(
            era=era, version=number, root=root or bytes([number]) * 32, codec="c/1", payload_hash=b"p" * 32, length=1,
            chunk_size=1, chunk_root=b"c" * 32,
        )  # fmt: skip
        return seal("edge", RUN, document.to_bytes(), key or self.policy)

    def index(self, number: int, *edges: bytes, era: int = 1) -> bytes:
        return EdgeIndex(era=era, version=number, edges=[document_hash(edge) for edge in edges]).to_bytes()

    def head(
        self, version: bytes, number: int, sequence: int, *,
        era: int = 1, index: bytes = b"", expires: int = NOW + 60_000, issued: int = NOW,
        key: Key | None = None, run: bytes = RUN, step: int | None = None,
    ) -> bytes:  # fmt: skip
        document = Head(
            era=era, version=number, version_hash=document_hash(version), index_hash=document_hash(index),
            step=number if step is None else step, sequence=sequence, addresses=[], root_serial=0, issued=issued,
            expires=expires,
        )  # fmt: skip
        return seal("head", run, encode(document), key or self.channel)
