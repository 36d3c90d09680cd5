"""The publisher, cut at every system call: what it has published stays so, and the rest is published again, once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.learner.messages import Export
from coordinator.publishing.publisher import Publisher, Signing
from p2p.envelope import decode_unverified, verify_envelope
from p2p.identity import public_bytes
from p2p.wire_types import decode
from protocol.versions import Head
from tests.coordinator.publishing.test_publisher_threads import Nobody, export, no_addresses
from tests.support.cuts import cuts
from tests.support.quick_disk import quick_folder
from weights.documents import EdgeIndex
from weights.snapshot import Snapshot
from weights.store import Store
from weights.update_path import path_to

RUN, KEY = bytes(32), Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NEXT = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


def signing_with(key: Ed25519PrivateKey) -> Signing:
    """Under the first Root, or under the one in which `NEXT` has followed."""
    former = frozenset({public_bytes(KEY)}) - {public_bytes(key)}
    return Signing(run=RUN, policy=key, channel=key, root_serial=1 + len(former), former=former)


@contextmanager
def publishing(folder: Path, key: Ed25519PrivateKey = KEY) -> Iterator[Publisher]:
    nobody: Any = Nobody()
    signing = signing_with(key)
    with Store(folder / "store") as store:
        yield Publisher(
            signing,
            store,
            nobody,
            nobody,
            nobody,
            head_file=folder / "head",
            addresses=no_addresses,
            clock=lambda: 1_000.0,
        )


def head_of(publisher: Publisher, key: Ed25519PrivateKey = KEY) -> Head | None:
    sealed = publisher.sealed_head
    return None if sealed is None else decode(verify_envelope(sealed, "head", RUN, {public_bytes(key)}), Head)


def check(publisher: Publisher, exports: list[Export], key: Ed25519PrivateKey = KEY) -> None:
    """That the versions are those of `exports`, and the last can be come to by what its Head names."""
    assert [(one.version, one.root) for one in publisher.versions] == [(one.version, one.root) for one in exports]
    for one in exports:
        assert Snapshot(Path(one.snapshot)).root == one.root, "the learner's own file"
    latest, head, store = publisher.latest, head_of(publisher, key), publisher._store
    assert latest is not None
    assert head is not None
    assert (head.version, head.version_hash, head.index_hash) == (
        latest.version, latest.version_hash, latest.index_hash,
    )  # fmt: skip
    index = store.document(head.index_hash)
    assert store.document(head.version_hash) is not None
    assert index is not None
    payloads = {file.hash for file in store.payloads()} | publisher._rebuilder.possible()
    edges = [publisher._edges[digest] for digest in EdgeIndex.from_bytes(index).edges]
    assert path_to([edge for edge in edges if edge.payload_hash in payloads], [], latest.root) is not None
    assert Snapshot(publisher.snapshots()[latest.root]).root == latest.root


def test_cut_at_any_moment_what_was_published_stays_and_the_rest_is_published_once() -> None:
    with quick_folder() as folder:
        exports: list[Export] = []
        for version in range(3):
            exports.append(export(folder, version, exports[-1] if exports else None))

        def life() -> Iterator[int]:
            """How many versions are published."""
            yield 0
            with publishing(folder) as publisher:
                for one in exports:
                    anyio.run(publisher.publish, 1, one.version, one)
                    yield len(publisher.versions)
                anyio.run(publisher.retain, (1, 2), 1 << 30, 0)
                yield len(publisher.versions)

        for cut in cuts(life(), folder):
            with publishing(folder) as publisher:
                assert cut.before <= len(publisher.versions) <= cut.after, cut.where
                before = head_of(publisher)
                assert before is None or before.version < len(publisher.versions), cut.where
                for one in exports[max(0, cut.before - 1) :]:
                    anyio.run(publisher.publish, 1, one.version, one)
                head = head_of(publisher)
                assert head is not None
                assert before is None or head.sequence > before.sequence, cut.where
                check(publisher, exports)
            with publishing(folder) as publisher:
                check(publisher, exports)


def test_cut_at_any_moment_a_new_policy_key_signs_all_that_a_node_needs_and_nothing_stands_there_twice() -> None:
    with quick_folder() as folder:
        exports: list[Export] = []
        for version in range(3):
            exports.append(export(folder, version, exports[-1] if exports else None))
        with publishing(folder) as publisher:
            for one in exports:
                anyio.run(publisher.publish, 1, one.version, one)
            edges = list(publisher._edges.values())
            sequence = publisher._head.sequence if publisher._head else 0

        def life() -> Iterator[int]:
            """Serial of the Root under which the newest Head is."""
            with publishing(folder) as publisher:
                yield 1
                anyio.run(publisher.sign_with, signing_with(NEXT))
                yield 2

        for cut in cuts(life(), folder):
            with publishing(folder, NEXT) as publisher:
                anyio.run(publisher.announce)
                check(publisher, exports, NEXT)
                head = head_of(publisher, NEXT)
                assert head is not None
                assert (head.root_serial, head.sequence > sequence) == (2, True), cut.where
                stored = publisher._store.documents("edge") + publisher._store.documents("version")[-1:]
                assert {one.key for each in stored for one in decode_unverified(each.sealed).signatures} == {
                    public_bytes(NEXT)
                }
                assert list(publisher._edges.values()) == edges, cut.where
                assert len(publisher._store.documents("version")) == len(exports), cut.where
                assert len(publisher._store.documents("published")) == len(exports), cut.where


def test_a_sequence_of_a_clock_that_was_a_year_ahead_is_dropped_when_the_clock_is_right() -> None:
    with quick_folder() as folder, publishing(folder) as publisher:
        first, now = export(folder, 0, None), [400 * 86_400.0]
        publisher._clock = lambda: now[0]
        anyio.run(publisher.publish, 1, 0, first)
        for clock, sequence in ((35 * 86_400.0, 35 * 86_400_000), (34.5 * 86_400, 35 * 86_400_000 + 1)):
            now[0] = clock
            anyio.run(publisher.announce)
            head = head_of(publisher)
            assert head is not None
            assert head.sequence == sequence
