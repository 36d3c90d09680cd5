"""The bytes that exports and store take on the operator's disk, measured on its files, in multiples of the weights. The
store's index, which has a few kB a version and a few MB at most, is left out: it does not grow with the weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.learner.checkpoints import export
from echo2.coordinator.publishing.publisher import Publisher
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from tests.support.disk_use import disk_use
from tests.support.publishing import publishing
from tests.support.quick_disk import quick_folder
from tests.support.synthetic_learner import SyntheticRun, SyntheticTrainer

BAR = 4.0
AT_A_FULL_EDGE = 4.6
"""The bar from the export of a full edge to the next step, while a version from before the last one is kept: two
snapshots and three full payloads."""
ROOMY = 1 << 40
STALENESS = 4


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder in memory: many versions are many fsyncs."""
    with quick_folder() as folder:
        yield folder


class Operator:
    """A learner and a publisher; `uses`: the disk's use after each export, publication and tidying, by the weights."""

    def __init__(self, folder: Path, publisher: Publisher, store: Store, rho: float, rows: int = 1024) -> None:
        self.publisher, self.store = publisher, store
        self.exports, self.place = folder / "learner" / "exports", folder / "store"
        self.uses: list[float] = []
        self.run = SyntheticRun(folder / "learner", SyntheticTrainer(rows, rho))
        self.nbytes = 2 * self.run.trainer.parameters

    async def begin(self) -> None:
        await self.publish(self.run.first)

    async def step(self, *, kept: int | None = None) -> bool:
        stepped = self.run.step()
        if stepped.export is not None:
            await self.publish(stepped.export, kept=kept)
        return stepped.export is not None

    async def publish(self, exported: export.Export, *, kept: int | None = None) -> None:
        self.note()
        await self.publisher.publish(1, exported.version, exported)
        self.note()
        oldest = (1, max(0, exported.version - STALENESS))
        await self.publisher.retain(oldest, ROOMY, ROOMY, [] if kept is None else [(1, kept)])
        self.note()

    def note(self) -> None:
        self.uses.append(self.use())

    def use(self) -> float:
        kinds = ("payloads", "snapshots", "incoming", "scratch")
        return disk_use(self.exports, *(self.place / kind for kind in kinds)) / self.nbytes


async def test_six_versions_take_less_than_four_times_the_weights_and_six_without_a_change_nothing(
    tmp_path: Path,
) -> None:
    with publishing(tmp_path) as (publisher, store):
        operator = Operator(tmp_path, publisher, store, rho=0.01)
        await operator.begin()
        for _ in range(6):
            assert await operator.step()
        assert max(operator.uses) <= 3.0, operator.uses
        before = operator.use()
        operator.run.trainer.rho = 0.0
        for _ in range(6):
            assert not await operator.step()
        assert operator.use() <= before
        assert [one.version for one in publisher.versions] == [*range(7)]
        assert len(store.documents("version")) == 7, "nothing is signed for a step that changed nothing"


@pytest.mark.slow
@pytest.mark.parametrize("kept", [None, 21])
async def test_any_number_of_versions_takes_less_than_four_times_the_weights(
    kept: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full edges come every 32 versions here, so that several fall into the run. `kept`: the guard's best version. The
    diffs are those of the real run: from the one before, of powers of two, and from the anchor."""
    monkeypatch.setattr(export, "FULL_EVERY", 32)
    monkeypatch.setattr(export, "ANCHOR_EVERY", 8)
    with publishing(tmp_path) as (publisher, store):
        operator = Operator(tmp_path, publisher, store, rho=0.01)
        await operator.begin()
        for _ in range(70):
            await operator.step(kept=kept)
        above = [use for use in operator.uses if use > BAR]
        assert len(above) <= (0 if kept is None else 3), "the 64th version alone"
        assert max(operator.uses) <= AT_A_FULL_EDGE, max(operator.uses)
        assert len(store.snapshots()) == 1
        assert len(list(operator.exports.glob("*.safetensors"))) <= 2
        roots = publisher.stored.roots()
        oldest = [one.root for one in publisher.versions if one.version >= 70 - STALENESS]
        assert set(oldest) <= roots, "each version in use can be read"
        version = 21 if kept is not None else 70 - STALENESS
        best = next(edge for edge in publisher.edges.values() if edge.version == version)
        path = await publisher.whole(1, version, best.root)
        assert path is not None
        assert Snapshot(path).root == best.root, "a version that is kept can be published again"
        assert operator.use() <= BAR + 1, "a rollback takes one snapshot more"
        await operator.step()
        assert len(store.snapshots()) == 1, "its snapshot goes with the next publication"


async def test_an_exported_file_is_one_file_in_both_folders_and_a_copy_where_links_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publishing(tmp_path) as (publisher, store):
        operator = Operator(tmp_path, publisher, store, rho=0.01, rows=64)
        await operator.begin()
        (snapshot,) = store.snapshots()
        assert snapshot.path.samefile(operator.run.first.snapshot)

        def refuse(path: Path, target: Path) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
        assert await operator.step()
        (snapshot,) = store.snapshots()
        exported = operator.exports / "v0000000001.safetensors"
        assert not snapshot.path.samefile(exported)
        assert snapshot.path.read_bytes() == exported.read_bytes()
        assert Snapshot(snapshot.path).root == snapshot.hash
