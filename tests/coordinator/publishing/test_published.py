"""The record of a published version."""

from echo2.coordinator.publishing.published import Published
from echo2.weights.store import StoredDocument


def test_a_version_is_read_from_its_record() -> None:
    one = Published(2, 7, b"r" * 32, b"v" * 32, b"i" * 32)
    assert one.record() == b"v" * 32 + b"i" * 32 + b"r" * 32
    stored = StoredDocument(hash=bytes(32), kind="published", era=2, version=7, sealed=one.record())
    assert Published.of(stored) == one
