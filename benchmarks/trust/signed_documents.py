"""Measure the check of a new version's signed documents against python-tuf's of as many: needs `pip install tuf`.

Ours: a Head, its Version and its Edge, opened by the trusted set of a node that holds the version before. python-tuf:
Timestamp, Snapshot and Targets, opened by its TrustedMetadataSet. All are signed by one Ed25519 key per role. Building
the set that holds the Root is not timed in either. Ours is given the same number of signatures to verify: three.
"""

import hashlib
import importlib.util
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from benchmarks.harness.bench import Claim, Measured, ratio, take_turns
from echo2.node.trust.trusted_set import TrustedSet
from echo2.p2p.envelope import Verified
from echo2.weights.documents import EdgeIndex
from tests.support.operator_keys import NOW, RUN, Operator

BAR: Final = 1.0
SETS: Final = 200


def document_claims(quick: bool) -> list[Claim]:
    """Measure both; return the claim, none where python-tuf is not installed."""
    if importlib.util.find_spec("tuf") is None:
        print("signed documents: not measured, python-tuf is not installed (pip install tuf)\n")
        return []
    count = SETS // 4 if quick else SETS
    measured = take_turns({"ours": lambda: _timed(_ours(count)), "tuf": lambda: _timed(_theirs(count))}, 5)
    ours, theirs = (median(1e6 / one.rate for one in measured[name]) for name in ("ours", "tuf"))
    print(f"three signed documents: {ours:.0f} us by the trusted set, {theirs:.0f} us by python-tuf\n")
    return [Claim("signed documents of a version, rate", ratio(measured["ours"], measured["tuf"]), "python-tuf", BAR)]


def _ours(count: int) -> list[Callable[[], object]]:
    operator = Operator()
    root = operator.root_document()
    version, edge = operator.version(6), operator.edge(6)
    index = operator.index(6, edge)
    head = operator.head(version, 6, 60, index=index)

    def opening(trusted: TrustedSet) -> Callable[[], object]:
        def opened() -> object:
            trusted.update_version(head, version, NOW)
            named: Verified[EdgeIndex] = trusted.edge_index(index, trusted.offer_head(head, NOW))
            return trusted.edge(edge, named)

        return opened

    return [opening(_rooted(root)) for _ in range(count)]


def _rooted(root: bytes) -> TrustedSet:
    trusted = TrustedSet(RUN, hashlib.sha256(root).digest())
    trusted.update_root(root, NOW)
    return trusted


def _theirs(count: int) -> list[Callable[[], object]]:
    import securesystemslib.signer as signer_module
    from tuf.api import metadata
    from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
    from tuf.ngclient.config import EnvelopeType

    keys: Any = signer_module  # it names no exports
    signer_of = keys.CryptoSigner
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    signers = {role: signer_of.generate_ed25519() for role in ("root", "timestamp", "snapshot", "targets")}
    tuf: Any = metadata  # its module names no exports
    root = tuf.Root(expires=expires)
    for role, signer in signers.items():
        root.add_key(signer.public_key, role)
    file = tuf.TargetFile(1, {"sha256": "00" * 32}, "payload")
    parts: dict[str, Any] = {
        "root": root,
        "timestamp": tuf.Timestamp(expires=expires, snapshot_meta=tuf.MetaFile(1)),
        "snapshot": tuf.Snapshot(expires=expires, meta={"targets.json": tuf.MetaFile(1)}),
        "targets": tuf.Targets(expires=expires, targets={"payload": file}),
    }
    sealed = {}
    for role, part in parts.items():
        document = tuf.Metadata(part)
        document.sign(signers[role])
        sealed[role] = document.to_bytes()

    def opening(trusted: Any) -> Callable[[], object]:
        def opened() -> object:
            trusted.update_timestamp(sealed["timestamp"])
            trusted.update_snapshot(sealed["snapshot"])
            return trusted.update_targets(sealed["targets"])

        return opened

    return [opening(TrustedMetadataSet(sealed["root"], EnvelopeType.METADATA)) for _ in range(count)]


def _timed(openings: list[Callable[[], object]]) -> Measured:
    cpu, wall = time.thread_time(), time.perf_counter()
    for opened in openings:
        opened()
    return Measured(len(openings), time.thread_time() - cpu, time.perf_counter() - wall)
