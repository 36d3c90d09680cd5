"""The trusted documents on disk: restarts, kills, tampering."""

import hashlib
from collections.abc import Iterator

import pytest

from echo2.node.trust.trust_store import TrustStore
from echo2.node.trust.trusted_set import (
    ROOT_AHEAD,
    Rollback,
    TooFarAhead,
    TrustedSet,
)
from echo2.p2p.identity import generate_key
from echo2.protocol.authority import WrongRoot
from tests.support.cuts import cuts
from tests.support.operator_keys import NOW, RUN, Operator
from tests.support.quick_disk import quick_folder


def test_a_stored_head_beyond_the_bounds_is_dropped_and_its_version_kept(tmp_path) -> None:
    operator = Operator()
    first = operator.root_document()
    pin = hashlib.sha256(first).digest()
    records = TrustStore(tmp_path, RUN, pin, NOW)
    records.update_roots([first], NOW)
    five = operator.version(5)
    records.update_version(operator.head(five, 5, 50), five, NOW)
    (tmp_path / "head").write_bytes(operator.head(five, 5, (1 << 53) - 1))
    again = TrustStore(tmp_path, RUN, pin, NOW)
    assert again.trusted.head is None
    assert again.trusted.version is not None
    again.offer_head(operator.head(five, 5, 51), NOW)
    with pytest.raises(Rollback):
        again.offer_head(operator.head(operator.version(4), 4, 60), NOW)


def test_a_root_of_more_than_two_years_is_not_adopted_and_one_that_was_adopted_stays(tmp_path) -> None:
    operator = Operator()
    for expires in (NOW + ROOT_AHEAD, NOW + ROOT_AHEAD + 1):
        root = operator.root_document(expires=expires)
        records = TrustStore(tmp_path / str(expires), RUN, hashlib.sha256(root).digest(), NOW)
        if expires == NOW + ROOT_AHEAD:
            records.update_roots([root], NOW)
            assert TrustStore(tmp_path / str(expires), RUN, hashlib.sha256(root).digest(), 0).serial == 0
        else:
            with pytest.raises(TooFarAhead, match="two years"):
                records.update_roots([root], NOW)


def test_trusted_documents_survive_a_restart_and_are_verified_again(tmp_path) -> None:
    operator = Operator()
    first = operator.root_document()
    pin = hashlib.sha256(first).digest()
    records = TrustStore(tmp_path, RUN, pin, NOW)
    records.update_roots([first], NOW)
    records.update_runspec(operator.runspec())
    version = operator.version(5)
    records.update_version(operator.head(version, 5, 50), version, NOW)
    again = TrustStore(tmp_path, RUN, pin, NOW).trusted
    assert (again.head, again.version, again.runspec) == (
        records.trusted.head, records.trusted.version, records.trusted.runspec
    )  # fmt: skip
    with pytest.raises(Rollback):
        again.offer_head(operator.head(operator.version(4), 4, 60), NOW)


def test_a_kill_at_any_moment_leaves_the_documents_before_or_after_a_change() -> None:
    operator = Operator()
    roots = [operator.root_document()]
    five = operator.version(5)
    heads = [operator.head(five, 5, sequence) for sequence in (50, 51)]
    operator.channel = generate_key()
    roots.append(operator.root_document(1))
    six = operator.version(6)
    heads.append(operator.head(six, 6, 60))
    pin = hashlib.sha256(roots[0]).digest()

    def current(trusted: TrustedSet) -> tuple[int, int]:
        """Return the number of Roots and the version."""
        return len(trusted.roots), trusted.version.value.version if trusted.version else -1

    with quick_folder() as folder:

        def life() -> Iterator[tuple[int, int]]:
            yield (0, -1)
            records = TrustStore(folder, RUN, pin, NOW)
            records.update_roots(roots[:1], NOW)
            yield current(records.trusted)
            records.update_runspec(operator.runspec())
            yield current(records.trusted)
            records.update_version(heads[0], five, NOW)
            yield current(records.trusted)
            records.offer_head(heads[1], NOW)
            yield current(records.trusted)
            records.update_roots(roots, NOW)
            yield current(records.trusted)
            records.update_version(heads[2], six, NOW)
            yield current(records.trusted)

        for cut in cuts(life(), folder):
            records = TrustStore(folder, RUN, pin, NOW)
            assert current(records.trusted) in (cut.before, cut.after), cut.where
            records.update_roots(roots, NOW)
            records.update_version(heads[2], six, NOW)
            assert current(TrustStore(folder, RUN, pin, NOW).trusted) == (2, 6), cut.where


def test_a_tampered_folder_introduces_no_document(tmp_path) -> None:
    operator, thief = Operator(), Operator()
    first = operator.root_document()
    pin = hashlib.sha256(first).digest()
    records = TrustStore(tmp_path, RUN, pin, NOW)
    records.update_roots([first], NOW)
    (tmp_path / "version").write_bytes(thief.version(99))
    (tmp_path / "head").write_bytes(thief.head(thief.version(99), 99, 99))
    assert TrustStore(tmp_path, RUN, pin, NOW).trusted.version is None
    (tmp_path / "root.000000").write_bytes(thief.root_document())
    with pytest.raises(WrongRoot):
        TrustStore(tmp_path, RUN, pin, NOW)
