"""Payloads on disk: partial, complete, damaged and lost."""

import contextlib
import errno
import os
from pathlib import Path

import msgspec
import pytest

from echo2.p2p.errors import BadChunk, LocalNetworkFault
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import digest, hash_payload, leaf_digest, manifest_of
from echo2.p2p.swarm.open_files import OpenPayloads
from echo2.p2p.swarm.payload_file import PartialPayload, PayloadFile
from echo2.runtime.files import syncing
from tests.support.cuts import cuts
from tests.support.peers import payload_file
from tests.support.quick_disk import quick_folder

KIB = 1 << 10
LENGTH = 100 * KIB + 5


@pytest.fixture
def whole(tmp_path) -> PayloadFile:
    return PayloadFile.open(payload_file(tmp_path / "whole", LENGTH), tmp_path / "whole")


def started(whole: PayloadFile, path: Path, *indices: int) -> PartialPayload:
    partial = PartialPayload(whole.manifest, path)
    for index in indices:
        assert partial.put(index, *whole.read(index))
    return partial


def test_a_filled_payload_is_renamed_and_still_read(whole, tmp_path):
    partial = started(whole, tmp_path / "p", *range(whole.chunks))
    assert partial.complete
    assert not (tmp_path / "p").exists()
    partial.finish()
    assert (tmp_path / "p").read_bytes() == whole.path.read_bytes()
    assert partial.read(3) == whole.read(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p", "whole"]


def test_a_partial_payload_proves_what_it_has_and_no_more(whole, tmp_path):
    partial = started(whole, tmp_path / "p", 2, 6)
    for index in range(whole.chunks):
        assert partial.read(index) == (whole.read(index) if index in (2, 6) else None)
    data, proof = partial.read(6)
    assert merkle.verify(whole.manifest.chunk_root, data, 6, whole.chunks, proof, digest)


def test_a_chunk_twice_is_stored_once(whole, tmp_path):
    partial = started(whole, tmp_path / "p", 2)
    assert not partial.put(2, *whole.read(2))


def bad_chunks(whole: PayloadFile):
    data, proof = whole.read(2)
    return {
        "other bytes": (2, data[:-1] + b"?", proof),
        "another index": (3, data, proof),
        "an index beyond the end": (7, data, proof),
        "a negative index": (-1, data, proof),
        "a proof too short": (2, data, proof[:-1]),
        "another proof": (2, data, whole.read(3)[1]),
        "a chunk too short": (2, data[:-1], proof),
        "no bytes": (2, b"", proof),
    }


def test_a_bad_chunk_is_never_stored(whole, tmp_path):
    partial = started(whole, tmp_path / "p")
    for sentence, (index, data, proof) in bad_chunks(whole).items():
        with pytest.raises(BadChunk):
            partial.put(index, data, proof)
        assert partial.have == 0, sentence
    assert (tmp_path / "p.part").read_bytes() == bytes(LENGTH)


def test_a_download_resumes_with_the_chunks_that_still_verify(whole, tmp_path):
    started(whole, tmp_path / "p", 0, 2, 5).close()
    again = PartialPayload(whole.manifest, tmp_path / "p")
    assert again.have == 0b100101
    assert again.read(5) == whole.read(5)


def test_cut_at_any_moment_a_download_goes_on_from_chunks_that_verify_or_is_whole(whole):
    with quick_folder() as folder:
        path = folder / "p"

        def life():
            yield None
            partial = PartialPayload(whole.manifest, path)
            for index in range(whole.chunks):
                partial.put(index, *whole.read(index))
            yield None
            partial.finish()
            partial.close()
            yield "whole"

        for cut in cuts(life(), folder):
            if path.exists():
                assert cut.after == "whole", cut.where
            else:
                assert cut.before is None, cut.where
                partial = PartialPayload(whole.manifest, path)
                for index in range(whole.chunks):
                    if not partial.have >> index & 1:
                        assert partial.put(index, *whole.read(index))
                partial.finish()
                partial.close()
            PayloadFile.open(whole.manifest, path).close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


DAMAGE = {
    "a torn chunk": (lambda p: overwrite(Path(f"{p}.part"), 2 * 16 * KIB + 9, b"torn"), 0b100001),
    "a torn proof": (lambda p: overwrite(Path(f"{p}.part.proofs"), 2 * 97 + 40, b"torn"), 0b100001),
    "an absurd proof length": (lambda p: overwrite(Path(f"{p}.part.proofs"), 2 * 97, b"\xff"), 0b100001),
    "no proofs": (lambda p: Path(f"{p}.part.proofs").unlink(), 0),
    "proofs cut short": (lambda p: overwrite_short(Path(f"{p}.part.proofs"), 100), 1),
    "no part": (lambda p: Path(f"{p}.part").unlink(), 0),
    "a part cut short": (lambda p: overwrite_short(Path(f"{p}.part"), 50 * KIB), 0b000101),
    "a part too long": (lambda p: overwrite(Path(f"{p}.part"), 200 * KIB, b"x"), 0b100101),
}


def overwrite_short(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


@pytest.mark.parametrize(("damage", "have"), DAMAGE.values(), ids=DAMAGE.keys())
def test_chunks_that_a_crash_damaged_are_fetched_again_and_the_rest_is_kept(whole, tmp_path, damage, have):
    started(whole, tmp_path / "p", 0, 2, 5).close()
    damage(tmp_path / "p")
    again = PartialPayload(whole.manifest, tmp_path / "p")
    assert again.have == have
    for index in range(whole.chunks):
        again.put(index, *whole.read(index))
    again.finish()
    assert (tmp_path / "p").read_bytes() == whole.path.read_bytes()


def test_the_part_of_another_payload_counts_for_nothing(whole, tmp_path):
    started(whole, tmp_path / "p", 0, 2, 5).close()
    other = payload_file(tmp_path / "other", LENGTH, seed=2)
    assert PartialPayload(other, tmp_path / "p").have == 0


def test_a_chunk_that_the_disk_changed_is_not_sent(whole):
    overwrite(whole.path, 16 * KIB, b"changed")
    assert whole.read(1) is None
    assert whole.read(0) is not None


def test_a_closed_payload_neither_reads_nor_writes(whole, tmp_path):
    partial = started(whole, tmp_path / "p", 0)
    partial.close()
    partial.close()
    assert partial.read(0) is None
    with pytest.raises(LocalNetworkFault, match="closed"):
        partial.put(1, *whole.read(1))


def test_a_payload_that_is_closed_while_it_is_renamed_leaves_no_file_open(whole, tmp_path, monkeypatch):
    files = OpenPayloads()
    partial = PartialPayload(whole.manifest, tmp_path / "p", files)
    for index in range(whole.chunks):
        partial.put(index, *whole.read(index))

    @contextlib.contextmanager
    def closing(folder):
        with syncing(folder):
            yield
        partial.close()  # the daemon ends while the folder becomes durable

    monkeypatch.setattr("echo2.p2p.swarm.payload_file.syncing", closing)
    partial.finish()
    assert len(files._open) == 0
    assert partial.read(3) is None
    assert (tmp_path / "p").read_bytes() == whole.path.read_bytes()


def test_a_folder_that_cannot_be_written_is_a_local_fault(whole, tmp_path):
    with pytest.raises(LocalNetworkFault, match="No such file"):
        PartialPayload(whole.manifest, tmp_path / "missing" / "p")


def test_a_read_that_must_not_block_takes_the_page_cache_or_raises(whole):
    try:
        assert whole.read(3, block=False) == whole.read(3)
    except BlockingIOError:  # a file system that cannot say what is in memory
        assert whole.read(3) is not None


def test_a_read_that_must_not_block_raises_if_the_page_cache_has_less_than_a_chunk(whole, monkeypatch):
    monkeypatch.setattr("echo2.p2p.swarm.payload_file.RWF_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", lambda *_: 100)
    with pytest.raises(BlockingIOError):
        whole.read(3, block=False)
    monkeypatch.setattr("echo2.p2p.swarm.payload_file.RWF_NOWAIT", 0)
    with pytest.raises(BlockingIOError):
        whole.read(3, block=False)
    assert whole.read(3) is not None


def test_a_failing_disk_makes_a_chunk_unavailable_in_the_page_cache_too(whole, monkeypatch):
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("echo2.p2p.swarm.payload_file.RWF_NOWAIT", 8)
    monkeypatch.setattr(os, "preadv", fail)
    assert whole.read(3, block=False) is None


ORDERS = {
    "in order": (range(7), ()),
    "the last first": (range(6, -1, -1), ()),
    "in stripes": ((0, 2, 4, 6, 1, 3, 5), ()),
    "resumed in the middle": ((0, 1, 2), (6, 5, 4, 3)),
    "resumed with a gap": ((0, 2, 5), (1, 6, 4, 3)),
    "resumed with all": (range(7), ()),
}


@pytest.mark.parametrize(("before", "after"), ORDERS.values(), ids=ORDERS.keys())
def test_a_payload_is_whole_in_whatever_order_the_chunks_come(whole, tmp_path, before, after):
    started(whole, tmp_path / "p", *before).close()
    partial = PartialPayload(whole.manifest, tmp_path / "p")
    for index in after:
        assert partial.put(index, *whole.read(index))
    partial.finish()
    assert (tmp_path / "p").read_bytes() == whole.path.read_bytes()


def test_a_payload_that_lacks_chunks_is_not_finished(whole, tmp_path):
    partial = started(whole, tmp_path / "p", *range(6))
    with pytest.raises(ValueError, match="missing"):
        partial.finish()
    assert not (tmp_path / "p").exists()


def test_a_manifest_that_contradicts_itself_is_found_when_the_file_is_opened_anew(whole, tmp_path):
    """The chunk root vouches for what comes; name and bytes are compared when a file is found on the disk."""
    lie = msgspec.structs.replace(whole.manifest, hash=bytes(32))
    chunks = [whole.read(index) for index in range(whole.chunks)]
    partial = PartialPayload(lie, tmp_path / "p")
    for index in range(whole.chunks):
        partial.put(index, *chunks[index])
    partial.finish()
    assert (tmp_path / "p").read_bytes() == whole.path.read_bytes()
    with pytest.raises(LocalNetworkFault, match="is not the payload"):
        PayloadFile.open(lie, tmp_path / "p")


def test_a_payload_is_hashed_once_on_its_way_in(whole, tmp_path, monkeypatch):
    taken = [whole.read(index) for index in range(whole.chunks)]
    nbytes = []
    monkeypatch.setattr(
        "echo2.p2p.swarm.payload_file.leaf_digest", lambda data: nbytes.append(len(data)) or leaf_digest(data)
    )
    monkeypatch.setattr("echo2.p2p.swarm.open_files.scan", lambda file, size: pytest.fail("read again"))
    partial = PartialPayload(whole.manifest, tmp_path / "p")
    for index, (data, proof) in enumerate(taken):
        partial.put(index, data, proof)
    partial.finish()
    assert sum(nbytes) == LENGTH


def test_a_payload_hashed_while_it_was_written_is_offered_without_reading_it(tmp_path, monkeypatch):
    payload_file(tmp_path / "p", LENGTH)
    known, files = hash_payload(tmp_path / "p"), OpenPayloads()
    assert hash_payload(tmp_path / "p", known.hash) == known
    with monkeypatch.context() as patch:
        patch.setattr("echo2.p2p.swarm.open_files.scan", lambda file, size: pytest.fail("read again"))
        payload = PayloadFile.open(known, tmp_path / "p", files)
    assert payload.manifest == manifest_of(tmp_path / "p")
    assert type(payload.manifest) is Manifest
    assert payload.read(3) == PayloadFile.open(payload.manifest, tmp_path / "p", OpenPayloads()).read(3)
    payload.close()


SPOILED = {
    "other digests": lambda known: msgspec.structs.replace(known, leaves=[bytes(32)] * len(known.leaves)),
    "another length": lambda known: msgspec.structs.replace(known, length=known.length - 1),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_digests_that_do_not_fit_the_manifest_or_the_file_are_a_local_fault(tmp_path, spoil):
    payload_file(tmp_path / "p", LENGTH)
    with pytest.raises(LocalNetworkFault, match="is not the payload"):
        PayloadFile.open(spoil(hash_payload(tmp_path / "p")), tmp_path / "p", OpenPayloads())


def test_a_file_that_was_closed_is_read_again_despite_known_digests(tmp_path):
    payload_file(tmp_path / "p", LENGTH)
    files = OpenPayloads()
    payload = PayloadFile.open(hash_payload(tmp_path / "p"), tmp_path / "p", files)
    files.close((payload.manifest.hash, tmp_path / "p"))
    overwrite(tmp_path / "p", 16 * KIB, b"changed")
    assert payload.read(0) is None
    assert payload.lost
