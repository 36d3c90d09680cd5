"""The publisher, cut at every system call: what it has published stays so, and the rest is published again, once."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.learner.messages import Export
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.p2p.envelope import decode_unverified, verify_envelope
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.versions import Head
from echo2.weights.documents import EdgeIndex
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from echo2.weights.update_path import path_to
from tests.support.cuts import cuts
from tests.support.publishing import KEY, exports_of, publishing
from tests.support.quick_disk import quick_folder

RUN = bytes(32)
NEXT = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


def signing_with(key: Ed25519PrivateKey) -> Signing:
    """Return the keys under the first Root, or under the second, in which `NEXT` replaces `KEY`."""
    former = frozenset({public_bytes(KEY)}) - {public_bytes(key)}
    return Signing(run=RUN, policy=key, channel=key, root_serial=1 + len(former), former=former)


def clock() -> float:
    return 1_000.0


def head_of(publisher: Publisher, key: Ed25519PrivateKey = KEY) -> Head | None:
    sealed = publisher.sealed_head
    return None if sealed is None else decode(verify_envelope(sealed, "head", RUN, {public_bytes(key)}), Head)


def check(publisher: Publisher, store: Store, exports: list[Export], key: Ed25519PrivateKey = KEY) -> None:
    """Assert that the versions are those of `exports`, and that the last Head's documents lead to the last of them."""
    assert [(one.version, one.root) for one in publisher.versions] == [(one.version, one.root) for one in exports]
    for one in exports:
        assert Snapshot(Path(one.snapshot)).root == one.root, "the learner's own file"
    latest, head = publisher.latest, head_of(publisher, key)
    assert latest is not None
    assert (head.version, head.version_hash, head.index_hash) == (
        latest.version, latest.version_hash, latest.index_hash,
    )  # fmt: skip
    index = store.document(head.index_hash)
    assert store.document(head.version_hash) is not None
    assert index is not None
    payloads = {file.hash for file in store.payloads()} | publisher._rebuilder.possible()
    edges = [publisher.edges[digest] for digest in EdgeIndex.from_bytes(index).edges]
    assert path_to([edge for edge in edges if edge.payload_hash in payloads], [], latest.root) is not None
    assert Snapshot(publisher.stored.snapshots()[latest.root]).root == latest.root


@pytest.mark.slow
def test_cut_at_any_moment_what_was_published_stays_and_the_rest_is_published_once() -> None:
    with quick_folder() as folder:
        exports = exports_of(folder, 3)

        def life() -> Iterator[int]:
            """Yield the number of published versions."""
            yield 0
            with publishing(folder, clock=clock) as (publisher, _):
                for one in exports:
                    anyio.run(publisher.publish, 1, one.version, one)
                    yield len(publisher.versions)
                anyio.run(publisher.retain, (1, 2), 1 << 30, 0)
                yield len(publisher.versions)

        for cut in cuts(life(), folder):
            with publishing(folder, clock=clock) as (publisher, store):
                assert cut.before <= len(publisher.versions) <= cut.after, cut.where
                before = head_of(publisher)
                assert before is None or before.version < len(publisher.versions), cut.where
                for one in exports[max(0, cut.before - 1) :]:
                    anyio.run(publisher.publish, 1, one.version, one)
                head = head_of(publisher)
                assert head is not None
                assert before is None or head.sequence > before.sequence, cut.where
                check(publisher, store, exports)
            with publishing(folder, clock=clock) as (publisher, store):
                check(publisher, store, exports)


def test_cut_at_any_moment_a_new_policy_key_signs_all_that_a_node_needs_and_no_document_is_stored_twice() -> None:
    with quick_folder() as folder:
        exports = exports_of(folder, 3)
        with publishing(folder, clock=clock) as (publisher, store):
            for one in exports:
                anyio.run(publisher.publish, 1, one.version, one)
            edges = list(publisher.edges.values())
            newest = head_of(publisher)
            sequence = newest.sequence if newest else 0

        def life() -> Iterator[int]:
            """Yield the serial of the newest Head's Root."""
            with publishing(folder, clock=clock) as (publisher, _):
                yield 1
                anyio.run(publisher.sign_with, signing_with(NEXT))
                yield 2

        for cut in cuts(life(), folder):
            with publishing(folder, signing=signing_with(NEXT), clock=clock) as (publisher, store):
                anyio.run(publisher.announce)
                check(publisher, store, exports, NEXT)
                head = head_of(publisher, NEXT)
                assert (head.root_serial, head.sequence > sequence) == (2, True), cut.where
                stored = store.documents("edge") + store.documents("version")[-1:]
                assert {one.key for each in stored for one in decode_unverified(each.sealed).signatures} == {
                    public_bytes(NEXT)
                }
                assert list(publisher.edges.values()) == edges, cut.where
                assert len(store.documents("version")) == len(exports), cut.where
                assert len(store.documents("published")) == len(exports), cut.where
