"""Fetching a model from a hub, here a small one on the loopback: its commit, its files, and a transfer that is cut."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from echo2.runtime.errors import DiskFull, LocalFault
from echo2.weights import hub_fetch
from echo2.weights.hub_cache import commit_of, name_of
from echo2.weights.hub_fetch import HubName, HubUnreachable
from tests.support.small_hub import COMMIT, SmallHub, serving

NEEDED = ("config.json", "tokenizer.json")
WANTED = (*NEEDED, "tokenizer_config.json", "chat_template.jinja")
MODEL = "some-org/Small-1B"
WEIGHTS = save({"a": np.arange(100_000, dtype=np.float32)})


@pytest.fixture(autouse=True)
def _on_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_fetch, "_RETRY_SECONDS", 0.0)


@pytest.fixture
def hub() -> Iterator[SmallHub]:
    files = {
        "config.json": b"{}", "tokenizer.json": b'{"a": 1}', "chat_template.jinja": b"{{ x }}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"pickle", "modeling_small.py": b"code", "onnx/model.onnx": b"more", "README.md": b"# hi",
    }  # fmt: skip
    with serving(SmallHub(MODEL, files)) as small:
        yield small


class Fetching:
    """A fetch into a cache of this test, with what it reported."""

    def __init__(self, hub: SmallHub, cache: Path) -> None:
        self.environ = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
        self.said: list[str] = []

    def fetch(self, revision: str = "", model: str = MODEL) -> Path:
        return hub_fetch.fetch(HubName(model, revision), WANTED, NEEDED, self.said.append, self.environ)


@pytest.fixture
def fetching(hub: SmallHub, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path / "cache")


def test_names_of_the_hub_are_told_from_paths() -> None:
    assert hub_fetch.parse("tiny") is None
    assert hub_fetch.parse("some/folder") is None
    assert hub_fetch.parse("hf:org/name") == HubName("org/name", "")
    assert hub_fetch.parse("hf:org/name@refs/pr/1") == HubName("org/name", "refs/pr/1")
    for wrong in ("hf:", "hf:name", "hf:a/b/c", "hf:a/b@", "hf:../b", "hf:a/b@x y", "hf:a/b\n"):
        with pytest.raises(LocalFault, match=r"names no model of the hub: write hf:ORG/NAME, or hf:ORG/NAME@REVISION"):
            hub_fetch.parse(wrong)


def test_the_files_of_a_model_are_fetched_by_the_commit_of_its_revision_and_no_other_file(
    hub: SmallHub, fetching: Fetching
) -> None:
    folder = fetching.fetch("v1")
    assert folder.name == COMMIT == commit_of(folder)
    assert name_of(folder) == MODEL
    assert {path.name for path in folder.iterdir()} == {*NEEDED, "chat_template.jinja", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert fetching.said[0] == f"fetching {MODEL}, 4 files, 0.4 MB"
    assert fetching.said[-1] == f"{MODEL} is at commit {COMMIT}, in {folder}"
    assert any(sentence.strip().startswith("100 %, 0.4 of 0.4 MB") for sentence in fetching.said)
    asked = len(hub.asked)
    assert fetching.fetch() == folder
    assert len(hub.asked) == asked, "nothing is fetched twice"


def test_a_commit_that_the_cache_has_whole_needs_no_hub(fetching: Fetching) -> None:
    folder = fetching.fetch(COMMIT)
    fetching.environ["HF_ENDPOINT"] = "http://127.0.0.1:1"
    assert fetching.fetch(COMMIT) == folder
    assert fetching.said[-1] == f"{MODEL} is in the cache at commit {COMMIT}"


def test_a_cut_transfer_goes_on_from_its_last_byte(hub: SmallHub, fetching: Fetching) -> None:
    hub.cut["model.safetensors"] = 150_000
    hub.down = True
    with pytest.raises(HubUnreachable, match=r"cannot be fetched from .*: try again, which goes on where it ended"):
        fetching.fetch()
    hub.down = False
    hub.cut["model.safetensors"] = 100_000 + 250_000
    hub.asked.clear()
    assert (fetching.fetch() / "model.safetensors").read_bytes() == WEIGHTS
    firsts = [first for name, first in hub.asked if name == "model.safetensors"]
    assert 100_000 < firsts[0] <= 150_000, "the next try asks for the rest"
    assert 300_000 < firsts[1] <= 350_000, "so does the same try, where the line is cut for a moment"


def test_what_another_process_left_is_gone_on_with_and_false_bytes_in_it_are_found(
    hub: SmallHub, fetching: Fetching, tmp_path: Path
) -> None:
    blobs = tmp_path / "cache" / "models--some-org--Small-1B" / "blobs"
    blobs.mkdir(parents=True)
    rows = {row["rfilename"]: row for row in hub.listing()["siblings"]}  # type: ignore[attr-defined]
    partial = blobs / f"{rows['model.safetensors']['lfs']['sha256']}.echo2-incomplete"
    partial.write_bytes(b"x" * 1000)
    with pytest.raises(LocalFault, match=r"model\.safetensors of .* came with other bytes than the hub states"):
        fetching.fetch()
    assert not partial.exists()
    partial.write_bytes(WEIGHTS[:250_000])
    hub.asked.clear()
    fetching.said.clear()
    assert (fetching.fetch() / "model.safetensors").read_bytes() == WEIGHTS
    assert ("model.safetensors", 250_000) in hub.asked
    assert fetching.said[0] == f"fetching {MODEL}, 1 file, 0.4 MB, of which 0.2 are here"


def test_shards_are_fetched_by_their_index(hub: SmallHub, fetching: Fetching) -> None:
    del hub.files["model.safetensors"]
    parts = {
        f"model-0000{number}-of-00002.safetensors": {name: np.ones(4, np.float32)}
        for number, name in ((1, "a"), (2, "b"))
    }
    hub.files |= {name: save(tensors) for name, tensors in parts.items()}
    index = {"weight_map": {key: name for name, tensors in parts.items() for key in tensors}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.files["training-state.safetensors"] = b"not of the model"
    folder = fetching.fetch()
    assert {path.name for path in folder.iterdir()} == {
        *NEEDED, "chat_template.jinja", "model.safetensors.index.json", *parts
    }  # fmt: skip
    index["weight_map"]["c"] = "../../etc/passwd"
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.commit = "f" * 40
    with pytest.raises(LocalFault, match=r"names the shard '../../etc/passwd'"):
        fetching.fetch()


@pytest.mark.parametrize(
    ("model", "revision", "sentence"),
    [
        ("some-org/other", "", "has no model some-org/other that it shows you: check the name"),
        ("some-org/gated", "", "is given only after an agreement: accept it at"),
        (MODEL, "v9", "some-org/Small-1B has no revision v9: look at"),
        (MODEL, "a" * 40, "has no revision"),
    ],
)
def test_what_the_hub_does_not_have_is_one_sentence(
    model: str, revision: str, sentence: str, fetching: Fetching, tmp_path: Path
) -> None:
    with pytest.raises(LocalFault, match=sentence) as caught:
        fetching.fetch(revision, model)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("config.json", "has no config.json: name a model as"),
        ("model.safetensors", "has no safetensors weights; pickled"),
    ],
)
def test_a_model_that_lacks_a_file_is_refused_before_anything_is_fetched(
    missing: str, sentence: str, hub: SmallHub, fetching: Fetching
) -> None:
    del hub.files[missing]
    with pytest.raises(LocalFault, match=sentence):
        fetching.fetch()
    assert hub.asked == []


def test_a_hub_that_is_not_there_and_a_full_disk_are_one_sentence(
    fetching: Fetching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_fetch.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DiskFull, match=r"has 0 MB free, and 0 MB are to be fetched"):
        fetching.fetch()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        fetching.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(HubUnreachable, match=r"cannot be fetched from http://127.* or name the folder of a model"):
            fetching.fetch()
