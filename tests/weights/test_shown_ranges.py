"""Half a MiB of a version's bytes, chosen by a lease: equal in each file of the version, other for any other."""

import json
from pathlib import Path

import numpy as np
import pytest

from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.shown_ranges import RANGE_BYTES, RANGES, places, shown_of, shown_ranges
from echo2.weights.snapshot import Snapshot
from tests.support import paths
from tests.weights.conftest import MakeSnapshot, scrambled

VECTOR = paths.VECTORS / "weights_shown_ranges.json"
LEASE, OTHER = bytes(range(16)), bytes(16)
ELEMENTS = 300_000


@pytest.fixture
def snapshot(make_snapshot: MakeSnapshot) -> Snapshot:
    return make_snapshot("large", {"w": ("BF16", scrambled(ELEMENTS, np.uint16))})


def test_the_places_follow_from_the_lease_and_lie_within_the_data() -> None:
    nbytes = 2 * ELEMENTS
    assert places(LEASE, nbytes) == places(LEASE, nbytes) != places(OTHER, nbytes)
    assert len(set(places(LEASE, nbytes))) == RANGES
    assert all(0 <= place <= nbytes - RANGE_BYTES for place in places(LEASE, nbytes))
    assert places(LEASE, 100) == [0] * RANGES


def test_the_answer_is_that_of_the_vector(snapshot: Snapshot) -> None:
    vector = json.loads(VECTOR.read_text())
    assert places(bytes.fromhex(vector["lease"]), snapshot.nbytes) == vector["places"]
    assert shown_ranges(snapshot, bytes.fromhex(vector["lease"])).hex() == vector["answer"]


def test_a_folder_that_was_stepped_answers_as_the_file_of_its_version(
    step: tuple[Snapshot, Snapshot], tmp_path: Path
) -> None:
    before, after = step
    rolling = Rolling.create(tmp_path / "folder", before)
    assert shown_of(tmp_path / "folder", LEASE) == shown_ranges(before, LEASE)
    payload = tmp_path / "payload"
    encode(before, after, payload)
    rolling.apply(payload, after.root)
    assert shown_of(tmp_path / "folder", LEASE) == shown_of(after.path, LEASE) != shown_ranges(before, LEASE)


def test_one_change_per_thousand_weights_shows(snapshot: Snapshot, make_snapshot: MakeSnapshot) -> None:
    bits = scrambled(ELEMENTS, np.uint16)
    bits[::1000] ^= np.uint16(1)
    stale = make_snapshot("stale", {"w": ("BF16", bits)})
    assert shown_ranges(stale, LEASE) != shown_ranges(snapshot, LEASE) != shown_ranges(snapshot, OTHER)
