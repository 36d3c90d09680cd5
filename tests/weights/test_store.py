"""The store: durable, swept at open, bounded, with its own errors for a full or damaged disk."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2.runtime.files import writing
from echo2.weights.errors import StoreBusy, StoreCorrupt
from echo2.weights.store import Store, StoreReader
from tests.support.children import child
from tests.support.cuts import cuts
from tests.support.paths import ROOT
from tests.support.quick_disk import quick_folder

WORKER = ROOT / "tests/support/store_worker.py"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


def put_payload(store: Store, version: int, data: bytes, *, era: int = 1) -> bytes:
    digest = blake3(data).digest()
    store.incoming(digest).write_bytes(data)
    store.put_payload(era, version, digest, store.incoming(digest))
    return digest


def put_snapshot(store: Store, version: int, data: bytes, *, era: int = 1) -> bytes:
    root = blake3(b"root" + data).digest()
    store.scratch("new").write_bytes(data)
    store.put_snapshot(era, version, root, store.scratch("new"))
    return root


def reopened(store: Store) -> Store:
    store.close()
    return Store(store.folder)


def test_documents_are_kept_under_their_hash(store: Store) -> None:
    digest = store.put_document("version", 1, 2, b"sealed")
    assert digest == blake3(b"sealed").digest()
    assert (store.document(digest), store.document(b"?" * 32)) == (b"sealed", None)
    assert store.put_document("version", 1, 2, b"sealed") == digest
    store.put_document("version", 1, 1, b"older")
    store.put_document("edge", 1, 2, b"other kind")
    assert [document.sealed for document in store.documents("version")] == [b"older", b"sealed"]
    assert store.forget_documents(["version"], before=(1, 3), keep=[(1, 1)], spare=[]) == 1
    assert store.document(digest) is None


def test_files_are_taken_in_and_found_again_after_a_restart(store: Store) -> None:
    digest, root = put_payload(store, 3, b"payload"), put_snapshot(store, 3, b"snapshot")
    with reopened(store) as again:
        payload, snapshot = again.payload(digest), again.snapshot(3, root)
        assert payload is not None
        assert (payload.read_bytes(), snapshot.read_bytes()) == (b"payload", b"snapshot")
        assert [(file.era, file.version, file.hash) for file in again.snapshots()] == [(1, 3, root)]
        assert again.nbytes() == 15


def test_weights_that_are_published_again_in_a_later_era_are_one_file_of_the_later_one(store: Store) -> None:
    root = put_snapshot(store, 3, b"snapshot")
    assert put_snapshot(store, 3, b"snapshot", era=1_795_905_085) == root
    assert [(file.era, file.path.name) for file in store.snapshots()] == [
        (1_795_905_085, f"3-{root.hex()}.safetensors")
    ]
    put_snapshot(store, 3, b"snapshot")
    assert not store.collect({(1_795_905_085, 3)}, 0)


def test_the_same_file_twice_is_kept_once(store: Store) -> None:
    digest = put_payload(store, 3, b"payload")
    assert put_payload(store, 3, b"payload") == digest
    assert (len(store.payloads()), store.incoming(digest).exists()) == (1, False)


def test_a_fetch_goes_on_after_a_restart_until_it_is_abandoned(store: Store) -> None:
    part = store.incoming(b"a" * 32).with_suffix(".part")
    part.write_bytes(b"half")
    store.incoming(b"b" * 32).write_bytes(b"whole")
    store.scratch("debris").write_bytes(b"torn")
    with reopened(store) as again:
        assert not again.scratch("debris").exists()
        again.abandon({b"a" * 32})
        assert part.exists()
        assert not again.incoming(b"b" * 32).exists()


def test_files_without_a_row_and_rows_without_a_file_are_swept(store: Store) -> None:
    kept, gone, torn = (put_payload(store, 1, data) for data in (b"kept", b"gone", b"torn"))
    paths = [store.payload(digest) for digest in (gone, torn)]
    assert paths[0] is not None
    assert paths[1] is not None
    paths[0].unlink()
    paths[1].write_bytes(b"to")
    (store.folder / "payloads" / "stray").write_bytes(b"x")
    (store.folder / "snapshots" / ".half.tmp").write_bytes(b"x")
    with reopened(store) as again:
        assert [file.hash for file in again.payloads()] == [kept]
        assert [path.name for path in (again.folder / "payloads").iterdir()] == [kept.hex()]
        assert list((again.folder / "snapshots").iterdir()) == []


def test_a_second_opening_is_refused(store: Store) -> None:
    with pytest.raises(StoreBusy):
        Store(store.folder)


def test_collecting_drops_the_oldest_and_stops_at_the_budget(store: Store) -> None:
    for version in (3, 1, 2):
        put_payload(store, version, bytes([version]) * 100)
    put_snapshot(store, 9, b"older era", era=0)
    assert [(file.era, file.version) for file in store.collect(set(), 200)] == [(0, 9), (1, 1)]
    assert store.nbytes() == 200
    assert store.collect(set(), 200) == []


def test_collecting_nothing_to_spare_drops_nothing(store: Store) -> None:
    put_payload(store, 1, b"x" * 100)
    assert store.collect({(1, 1)}, 0) == []


def test_a_read_does_not_wait_while_files_are_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop reads documents while a thread drops payloads, here on a blocked disk. At commit 439044d the
    document came only after the last file was deleted."""
    document = store.put_document("edge", 1, 1, b"a document")
    put_payload(store, 1, b"x" * 100)
    dropping, go_on, payloads_read = threading.Event(), threading.Event(), list[bytes | None]()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        dropping.set()
        go_on.wait(10)

    monkeypatch.setattr(Path, "unlink", unlink)
    collecting = threading.Thread(target=lambda: store.collect(set(), 0))
    reading = threading.Thread(target=lambda: payloads_read.append(store.document(document)))
    collecting.start()
    dropping.wait(10)
    reading.start()
    reading.join(2)
    in_time = list(payloads_read)
    go_on.set()
    collecting.join()
    reading.join()
    assert in_time == [b"a document"]


FILES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 300), st.booleans()), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(FILES, st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4))), st.integers(0, 2000))
def test_collecting_never_drops_a_kept_version(
    store: Store, files: list[tuple[int, int, int, bool]], keep: set[tuple[int, int]], budget: int
) -> None:
    store.collect(set(), 0)
    for number, (era, version, size, is_snapshot) in enumerate(files):
        put = put_snapshot if is_snapshot else put_payload
        put(store, version, bytes([number]) * size, era=era)
    before = {file.path: file for file in (*store.payloads(), *store.snapshots())}
    dropped = {file.path for file in store.collect(keep, budget)}
    left = {file.path for file in (*store.payloads(), *store.snapshots())}
    assert left == before.keys() - dropped
    assert all(path.exists() == (path in left) for path in before)
    assert all((before[path].era, before[path].version) not in keep for path in dropped)
    spare = [path for path in left if (before[path].era, before[path].version) not in keep]
    assert store.nbytes() <= budget or not spare


@pytest.mark.parametrize("damage", ["garbage", "torn page", "another program's format"])
def test_a_damaged_index_is_named_with_its_remedy(store: Store, damage: str) -> None:
    for number in range(200):
        store.put_document("version", 1, number, b"x" * 500 + number.to_bytes(2, "little"))
    store.close()
    index = store.folder / "index.sqlite"
    if damage == "garbage":
        index.write_bytes(b"not a database at all" * 500)
    elif damage == "torn page":
        data = bytearray(index.read_bytes())
        data[4096 : len(data) // 2] = bytes(len(data) // 2 - 4096)
        index.write_bytes(data)
    else:
        database = sqlite3.connect(index)
        database.execute("PRAGMA user_version = 77")
        database.close()
    with pytest.raises(StoreCorrupt, match=r"move index\.sqlite"):
        Store(store.folder)
    with pytest.raises(StoreCorrupt):
        Store(store.folder)  # and not StoreBusy: the failed opening let go of the lock


def content(number: int) -> bytes:
    return blake3(number.to_bytes(8, "little")).digest(20_000 + number % 7_000)


def run_until_killed(folder: Path, first: int, reports: int) -> list[str]:
    """Return the reports of the worker until it was killed, at some moment after its `reports`-th line."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(WORKER), str(folder), str(first)]
    with child(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        lines = [process.stdout.readline() for _ in range(reports)]
        process.send_signal(signal.SIGKILL)
        return [text_line.strip() for text_line in (*lines, *process.stdout) if text_line.endswith("\n")]


@pytest.mark.slow
def test_a_store_killed_at_24_moments_keeps_every_promise(tmp_path: Path) -> None:
    folder, rng, number = tmp_path / "store", random.Random(5), 0
    promised: dict[str, set[int]] = {"payload": set(), "snapshot": set(), "document": set()}
    for _ in range(24):
        reports = run_until_killed(folder, number, rng.randint(1, 30))
        assert reports[0] == "open"
        dropped: set[int] = set()
        for verb, *rest in (report.split() for report in reports[1:]):
            if verb == "put":
                promised[rest[0]].add(int(rest[1]))
            else:
                dropped.add(int(rest[0]))
        newest = max(promised["payload"], default=0)
        with Store(folder) as store:
            payloads = {file.version: file for file in store.payloads()}
            snapshots = {file.version: file for file in store.snapshots()}
            # Dropping may have gone on after the last report, but only oldest first and never the newest.
            assert newest in payloads or not promised["payload"]
            for name, kept in (("payload", payloads), ("snapshot", snapshots)):
                oldest = min(kept, default=0)
                assert {version for version in promised[name] if version > oldest} <= kept.keys()
            for file in (*payloads.values(), *snapshots.values()):
                assert file.path.read_bytes() == content(file.version)
            versions = {document.version for document in store.documents("version")}
            assert promised["document"] <= versions
            on_disk = {path for name in ("payloads", "snapshots") for path in (folder / name).iterdir()}
            assert on_disk == {file.path for file in (*payloads.values(), *snapshots.values())}
            assert list((folder / "scratch").iterdir()) == []
            store.abandon(set())
        number = max(versions | payloads.keys() | snapshots.keys(), default=-1) + 1
    assert number > 24


class Shelves(NamedTuple):
    documents: set[bytes]
    payloads: set[bytes]
    snapshots: set[bytes]


def shelves(store: Store) -> Shelves:
    """Return the contents of a store, after reading each file."""
    files = [*store.payloads(), *store.snapshots()]
    on_disk = {path for name in ("payloads", "snapshots", "scratch") for path in (store.folder / name).iterdir()}
    assert on_disk == {file.path for file in files}
    for file in files:
        assert file.path.read_bytes() == content(file.version)
    documents = {document.sealed for document in store.documents("version")}
    return Shelves(documents, {one.hash for one in store.payloads()}, {one.hash for one in store.snapshots()})


@pytest.mark.slow
def test_cut_at_any_moment_a_store_holds_what_it_held_before_or_behind(tmp_path: Path) -> None:
    with quick_folder() as folder:

        def life() -> Iterator[Shelves]:
            yield Shelves(set(), set(), set())
            with Store(folder / "store") as store:
                yield shelves(store)
                for number in (1, 2, 3, 3):
                    put_payload(store, number, content(number))
                    yield shelves(store)
                    put_snapshot(store, number, content(number))
                    yield shelves(store)
                    store.put_document("version", 1, number, b"%d" % number)
                    yield shelves(store)
                store.collect({(1, 3)}, 30_000)
                yield shelves(store)
                store.forget_documents(["version"], before=(1, 4), keep=[(1, 1), (1, 2)], spare=[])
                yield shelves(store)
            with Store(folder / "store") as store:
                yield shelves(store)

        for cut in cuts(life(), folder):
            with Store(folder / "store") as store:
                for shelf, before, behind in zip(shelves(store), cut.before, cut.after, strict=True):
                    assert before & behind <= shelf <= before | behind, cut.where
                put_payload(store, 9, content(9))
                assert blake3(content(9)).digest() in shelves(store).payloads, cut.where


FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from blake3 import blake3
    from echo2.weights.documents import TensorEntry
    from echo2.runtime.errors import DiskFull
    from echo2.weights.snapshot import writing_snapshot
    from echo2.weights.store import Store, StoreReader

    folder = Path(sys.argv[1])
    with Store(folder) as store:
        first = store.put_document("version", 1, 1, b"kept")
        store.incoming(b"i" * 32).write_bytes(b"payload")
        digest = blake3(b"payload").digest()
        store.put_payload(1, 1, digest, store.incoming(b"i" * 32))
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        out = store.scratch("new")
        try:
            with writing_snapshot(out, [TensorEntry(name="a", dtype="U8", shape=(300_000,))], {}) as writer:
                for _ in range(300):
                    writer.write(bytes(1000))
                writer.finish()
        except DiskFull as error:
            assert str(out) in str(error), error
            print("snapshot refused")
        assert list((folder / "scratch").iterdir()) == []
        try:
            for version in range(2, 300):
                store.put_document("version", 1, version, bytes(2000) + version.to_bytes(2, "little"))
        except DiskFull as error:
            assert "index.sqlite" in str(error), error
            print("document refused at", version)
        assert store.document(first) == b"kept"
        assert store.payload(digest).read_bytes() == b"payload"
        kept = [document.version for document in store.documents("version")]
        assert kept == list(range(1, version)), kept
"""


def test_a_full_disk_is_named_and_damages_nothing(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "snapshot refused" in result.stdout
    assert "document refused" in result.stdout
    with Store(tmp_path / "store") as store:
        assert store.documents("version")[0].sealed == b"kept"
        assert len(store.payloads()) == 1


def test_an_interrupted_write_leaves_the_older_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"older")
    with pytest.raises(KeyboardInterrupt), writing(target):
        raise KeyboardInterrupt
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"older"]


def test_the_store_starts_without_numpy_or_torch() -> None:
    program = "import sys, echo2.weights.store; assert not {'numpy', 'torch'} & sys.modules.keys(), 'heavy import'"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)


def test_a_reader_sees_what_the_holder_of_the_store_has_written_and_cannot_write(store: Store) -> None:
    digest = put_payload(store, 1, b"payload")
    with StoreReader(store.folder) as reader:
        assert reader.payload(digest) == store.payload(digest)
        document = store.put_document("version", 1, 1, b"sealed")
        assert reader.document(document) == b"sealed"
        store.collect((), 0)
        assert (reader.payload(digest), reader.nbytes()) == (None, 0)
        assert not hasattr(reader, "put_document")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._read("DELETE FROM documents", ())
    store.close()
    with StoreReader(store.folder) as reader:
        assert [one.sealed for one in reader.documents("version")] == [b"sealed"]


def test_a_reader_makes_no_store_and_knows_another_format(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FileNotFoundError, match="holds no store"):
        StoreReader(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "index.sqlite").write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreCorrupt):
        StoreReader(tmp_path)
    store._write("PRAGMA user_version = 9", ())
    with pytest.raises(StoreCorrupt, match="another build of echo2 made it"):
        StoreReader(store.folder)
