"""Test the open engine classes, by the files of a folder."""

from pathlib import Path

import structlog

from echo2.coordinator.verification.calibration import Calibration
from echo2.coordinator.verification.evidence import LEAST_P
from echo2.coordinator.verification.open_classes import OpenClasses, ledger_keys
from echo2.coordinator.verification.token_evidence import BINS, STATISTICS
from echo2.p2p.envelope import document_hash
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from tests.support.group_world import ALICE, BOB, KEYS, RUN, sealed_by_role

LEDGER = RoleKeys(keys=[public_bytes(KEYS["ledger"])], threshold=1)
CLASS = "transformers/bfloat16/cpu"
ROUNDING = "bfloat16"


def root_of(era: int, version: int) -> bytes | None:
    """Version 0 of era 0 is published, with a root of zeros."""
    return bytes(32) if (era, version) == (0, 0) else None


def sealed(at: int = 1, rounding: str = ROUNDING, run: bytes = RUN, version: int = 0, root: bytes = bytes(32)) -> bytes:
    tables = {name: [LEAST_P] * BINS for name in STATISTICS}
    document = Calibration(
        run=run, rounding=rounding, classes=[CLASS], devices=[], builds=[], era=0, version=version, root=root,
        machines={}, tables=tables, bound=1, at=at,
    )  # fmt: skip
    return sealed_by_role("calibration", encode(document))


def test_the_newest_file_opens_a_class_and_older_ones_stay_known(tmp_path: Path) -> None:
    classes = OpenClasses()
    assert classes.of(CLASS) is None
    old, new = sealed(1), sealed(2)
    (tmp_path / "2.calibration").write_bytes(new)
    assert classes.read(tmp_path, RUN, LEDGER, root_of) == [ROUNDING]
    (tmp_path / "1.calibration").write_bytes(old)
    assert classes.read(tmp_path, RUN, LEDGER, root_of) == [ROUNDING]
    assert classes.read(tmp_path, RUN, LEDGER, root_of) == []
    assert classes.of(CLASS) == document_hash(new)
    assert [one.at for one in classes.newest()] == [2]
    assert classes.tables(document_hash(old)) is not None
    assert classes.tables(bytes(32)) is None
    for other in ("transformers/bfloat16/cuda", "vllm/bfloat16/cuda", "of another build/bfloat16/tpu"):
        assert classes.of(other) == document_hash(new)
    for other in ("transformers/float16/cpu", "llamacpp/bfloat16/cpu", "vllm/float32/cuda"):
        assert classes.of(other) is None


def test_a_calibration_made_while_the_clock_was_ahead_is_replaced_by_that_of_a_later_version(tmp_path: Path) -> None:
    """Before, it counted for ever: the class stayed due, and was calibrated without end."""
    classes = OpenClasses()
    ahead, later = sealed(at=1 << 50), sealed(at=2, version=1)
    for number, one in enumerate((ahead, later)):
        (tmp_path / f"{number}.calibration").write_bytes(one)
    classes.read(tmp_path, RUN, LEDGER, lambda era, version: bytes(32))
    assert classes.of(CLASS) == document_hash(later)
    assert classes.newer(document_hash(ahead)) == document_hash(later)


def test_files_that_are_no_calibration_of_this_run_open_nothing(tmp_path: Path) -> None:
    classes = OpenClasses()
    (tmp_path / "a.calibration").write_bytes(b"nonsense")
    (tmp_path / "b.calibration").write_bytes(sealed(run=bytes(32)))
    (tmp_path / "c.txt").write_bytes(sealed())
    assert classes.read(tmp_path, RUN, LEDGER, root_of) == []
    assert classes.read(tmp_path / "none", RUN, LEDGER, root_of) == []


def test_a_calibration_of_a_version_to_come_waits_for_it(tmp_path: Path) -> None:
    published: dict[tuple[int, int], bytes] = {}
    classes = OpenClasses()
    (tmp_path / "1.calibration").write_bytes(sealed(version=3, root=bytes([3]) * 32))
    for _ in range(2):
        assert classes.read(tmp_path, RUN, LEDGER, lambda *key: published.get(key)) == []
        assert classes.waiting
    published[0, 3] = bytes([3]) * 32
    assert classes.read(tmp_path, RUN, LEDGER, lambda *key: published.get(key)) == [ROUNDING]
    assert not classes.waiting


def test_a_calibration_with_other_weights_than_the_versions_opens_nothing(tmp_path: Path) -> None:
    classes = OpenClasses()
    (tmp_path / "1.calibration").write_bytes(sealed(root=bytes([3]) * 32))
    with structlog.testing.capture_logs() as logs:
        assert classes.read(tmp_path, RUN, LEDGER, root_of) == []
        assert classes.read(tmp_path, RUN, LEDGER, root_of) == []
    assert [one["reason"] for one in logs] == ["it was measured with other weights than those of version 0"]
    assert (classes.of(CLASS), classes.waiting) == (None, False)


def test_a_rotated_ledger_key_still_counts_and_a_revoked_one_does_not() -> None:
    def root(serial: int, key: bytes, revoked: dict[bytes, int]) -> Root:
        roles = {"ledger": RoleKeys(keys=[key], threshold=1)}
        return Root(run=RUN, serial=serial, roles=roles, expires=1, issued=0, revoked=revoked)

    assert ledger_keys([root(1, ALICE, {}), root(2, BOB, {})]).keys == [ALICE, BOB]
    assert ledger_keys([root(1, ALICE, {}), root(2, BOB, {ALICE: 1})]).keys == [BOB]
