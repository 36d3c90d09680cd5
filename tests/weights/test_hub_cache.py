"""Finding a model's folder in a cache of the Hugging Face hub."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from echo2.weights.errors import BadSnapshot
from echo2.weights.hub_cache import cache_folder, model_folders, name_of, revisions


def revision(cache: Path, model: str, name: str, current: bool = False) -> Path:
    """Write a revision as the hub's library does: links to blobs."""
    repository = cache / f"models--{model.replace('/', '--')}"
    folder, blob = repository / "snapshots" / name, repository / "blobs" / name
    for one in (folder, blob.parent, repository / "refs"):
        one.mkdir(parents=True, exist_ok=True)
    save_file({"a": np.ones(3, np.float32)}, blob)
    (folder / "model.safetensors").symlink_to(blob)
    if current:
        (repository / "refs" / "main").write_text(name)
    return folder


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/c", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": ""}, "~/.cache/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_librarys_variables_say(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder).expanduser()


def test_a_model_is_found_by_each_of_its_names_and_its_current_revision_comes_first(tmp_path: Path) -> None:
    old, new = revision(tmp_path, "Org/Small-1B", "a1"), revision(tmp_path, "Org/Small-1B", "b2", current=True)
    other = revision(tmp_path, "Org/Other", "c3")
    for name in ("Org/Small-1B", "Small-1B", "small-1b"):
        assert revisions(tmp_path, name) == [new, old]
    assert revisions(tmp_path, "a1") == [old]
    assert revisions(tmp_path) == [other, new, old]
    assert revisions(tmp_path, "1B") == revisions(tmp_path / "nowhere") == []
    assert {name_of(one) for one in (new, old.parent.parent)} == {"Org/Small-1B"}
    assert name_of(tmp_path / "plain") == "plain"


def test_a_person_may_name_a_model_at_each_level_of_a_cache(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    new, old = revision(cache, "Org/Small", "b2", current=True), revision(cache, "Org/Small", "a1")
    assert model_folders(new, "x") == [new]
    assert model_folders(new.parent.parent, "x") == [new, old]
    assert model_folders(cache, "Small") == model_folders(tmp_path, "Org/Small") == [new, old]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("nothing", "nothing does not exist: name a model's folder"),
        ("file", "file is a file: name a model's folder"),
        ("empty", "empty holds no safetensors model: name the folder that has model.safetensors"),
        ("bin", "bin holds no safetensors model: name the folder that has model.safetensors"),
        ("models--a--b", "models--a--b holds no revision of its model: download it again"),
        ("cache", r"cache is a cache without a model named Small: name one of \S+models--Org--Other$"),
    ],
)
def test_a_folder_without_the_model_is_answered_by_what_to_type(tmp_path: Path, place: str, sentence: str) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("empty", "bin", "models--a--b/snapshots"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "bin" / "pytorch_model.bin").write_bytes(b"PK")
    revision(tmp_path / "cache", "Org/Other", "c3")
    with pytest.raises(BadSnapshot, match=sentence):
        model_folders(tmp_path / place, "Small")


def test_a_pipe_or_a_long_file_in_place_of_the_current_revisions_name_stops_nothing(tmp_path: Path) -> None:
    """A cache that several users write to: the pipe of one of them kept the others' nodes waiting for ever."""
    first, second = revision(tmp_path, "Org/A", "a1"), revision(tmp_path, "Org/A", "b2")
    main = tmp_path / "models--Org--A" / "refs" / "main"
    os.mkfifo(main)
    assert revisions(tmp_path, "A") == [first, second]
    main.unlink()
    main.write_bytes(b"b2" + bytes(1 << 20))
    assert revisions(tmp_path, "A") == [first, second]
