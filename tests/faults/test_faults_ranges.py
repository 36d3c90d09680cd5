"""Shown ranges between real processes, in bfloat16: a node that holds its version is credited, and one that shows bytes
of the version before is refused for that."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from benchmarks.attacks.attack_client import Client
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run.setup import load_run
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES
from echo2.coordinator.verification.calibration import Calibration, seal_calibration
from echo2.coordinator.verification.token_evidence import BINS, ONE, STATISTICS
from echo2.engines.registry import rounding_of
from echo2.protocol.leases import Lease
from echo2.weights.shown_ranges import shown_of
from tests.faults.audit import check_books
from tests.faults.liar import liar_at
from tests.faults.processes import Run, make_template, running, until
from tests.support.quick_disk import quick_folder

CLASS: Final = "transformers/bfloat16/cpu"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Start a run in bfloat16 with one honest node. Its Calibration calls nothing evidence: it is measured elsewhere
    (tests/coordinator/calibration/test_calibrate.py), and here the ranges alone decide."""
    with quick_folder() as folder:
        template = make_template(folder / "template", {"compute_dtype": "bfloat16", "engines": [CLASS]})
        with running(template, folder) as running_run:
            running_run.coordinator.invite()
            _calibrate(running_run.coordinator.folder)
            running_run.volunteer("ann")
            running_run.coordinator.past(1)
            yield running_run


def _calibrate(folder: RunFolder) -> None:
    """Open the class of a running coordinator."""
    run = load_run(folder.path, now=time.time_ns() // 1_000_000)
    root = until("version 0 is out", lambda: [*folder.store.glob("snapshots/0-*.safetensors")])[0]
    tables = {name: [ONE] * BINS for name in STATISTICS}
    sealed = seal_calibration(
        Calibration(
            run=run.id, rounding=rounding_of(CLASS), classes=[CLASS], devices=[], builds=[], era=1, version=0,
            root=bytes.fromhex(root.stem.rpartition("-")[2]), machines={}, tables=tables, bound=65_535, at=1,
        ),
        run.keys.ledger,
    )  # fmt: skip
    folder.calibrations.mkdir(exist_ok=True)
    (folder.calibrations / "1.calibration").write_bytes(sealed)


def _earlier(liar: Client, lease: Lease) -> Path:
    """Return the snapshot of the newest version before that of a lease that has other weights: a step may change
    none."""
    own = liar.snapshot(lease)
    number = {path: int(path.stem.split("-")[1]) for path in own.parent.glob(f"{lease.era}-*.safetensors")}
    root = own.stem.rpartition("-")[2]
    before = [path for path in number if number[path] < lease.version and not path.stem.endswith(root)]
    return max(before, key=lambda path: number[path])


def test_an_honest_node_in_bfloat16_is_asked_for_bytes_and_credited(run: Run) -> None:
    (ann,) = run.volunteers
    until("ann is credited", lambda: ann.accepted() >= 4)
    assert run.coordinator.row(ann).refused == 0
    assert "transformers/bfloat16" in str(run.coordinator.row(ann))


async def test_a_node_that_shows_bytes_of_the_version_before_is_refused_for_that(run: Run) -> None:
    async with liar_at(run.coordinator, CLASS) as liar:
        lease = await liar.lease()
        assert lease.ranges_asked
        assert lease.calibration is not None
        honest = liar.work(lease)
        assert honest.ranges == shown_of(liar.snapshot(lease), lease.id)
        stale = msgspec.structs.replace(honest, ranges=shown_of(_earlier(liar, lease), lease.id))
        assert stale.ranges != honest.ranges
        assert await liar.verdict(stale) == "other-weights"
        assert await liar.verdict(liar.work(await liar.lease())) in ACCEPTED_CODES


def test_the_books_agree_afterwards(run: Run) -> None:
    run.coordinator.past(run.coordinator.state().version)
    check_books(run)
