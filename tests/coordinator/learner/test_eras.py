"""A learner resumes its era only if no published version lies beyond its checkpoint."""

import pytest

from echo2.coordinator.learner.eras import KnownVersion, covers, first_version, is_behind, next_era


def known(version: int, mark: int = 0) -> KnownVersion:
    return KnownVersion(version, bytes([version, mark]) * 16)


COVERED = {
    "the checkpoint's own export is published": (known(4), known(4), known(3), True),
    "the export was not published yet": (known(3), known(4), known(3), True),
    "a later version is published": (known(5), known(4), known(3), False),
    "the published version has other bytes": (known(4, 1), known(4), known(3), False),
    "an older version is published than the checkpoint knows": (known(2), known(4), known(3), False),
    "the checkpoint has nothing and a version is published": (known(0), None, None, False),
    "nothing is published and nothing was": (None, known(0), None, True),
    "nothing is published any more": (None, known(4), known(3), False),
}


def test_a_checkpoint_behind_a_version_that_the_journal_has_lost_covers_nothing() -> None:
    assert covers(known(4), known(4), known(3), 4)
    assert not covers(known(4), known(4), known(3), 5), "version 5 was perhaps signed"
    assert not covers(None, None, None, 0)


@pytest.mark.parametrize("sentence", COVERED)
def test_a_checkpoint_covers_what_it_exports_and_the_version_before(sentence: str) -> None:
    published, export, before, covered = COVERED[sentence]
    assert covers(published, export, before) is covered


def test_the_weights_published_last_go_on_where_they_are_newer_than_the_checkpoints() -> None:
    assert is_behind(known(5), known(4))
    assert is_behind(known(5), None)
    assert not is_behind(known(4), known(4))
    assert not is_behind(known(3), known(4))
    assert not is_behind(None, known(4))


@pytest.mark.parametrize(("last", "now", "era"), [(1, 0.0, 2), (1, 1_700_000_000.9, 1_700_000_000), (9, 9.0, 10)])
def test_a_new_era_is_above_the_last_one_even_if_the_clock_is_behind(last: int, now: float, era: int) -> None:
    assert next_era(last, now) == era


def test_a_new_era_begins_above_every_known_version() -> None:
    assert first_version([known(4), None, known(7), known(2)]) == 8
    assert first_version([None, None]) == 0
