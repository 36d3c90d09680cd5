"""coordinator/run/root_files.py: the run's id without a verification."""

from pathlib import Path

import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run.root_files import run_id
from echo2.runtime.errors import LocalFault
from tests.support.operator_keys import RUN, Operator


@pytest.fixture
def place(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.roots.mkdir()
    return folder


def test_the_id_is_that_of_the_first_root(place: RunFolder) -> None:
    (place.roots / "1.root").write_bytes(Operator().root_document(1))
    assert run_id(place) == RUN


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x92\xa4root\xc4\x01x"])
def test_a_damaged_root_is_named(place: RunFolder, content: bytes) -> None:
    (place.roots / "1.root").write_bytes(content)
    with pytest.raises(LocalFault, match=r"1\.root is damaged .*put it back from your backup"):
        run_id(place)
