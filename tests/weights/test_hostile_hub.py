"""Fetching a model from a hub, or by a proxy, that means harm: nothing without end, no internal fault, no token."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save

from echo2.runtime.errors import LocalFault
from echo2.weights import hub_fetch
from echo2.weights.hub_fetch import HubName, HubUnreachable
from tests.support.small_hub import SmallHub, serving

NEEDED = ("config.json", "tokenizer.json")
WEIGHTS = save({"a": np.arange(1000, dtype=np.float32)})
INDEX = "model.safetensors.index.json"
NO_LIST = r"gives no list of the files of org/m \(.*\): is HF_ENDPOINT a hub, and is a proxy or a login page between"
OTHER_SIZE = r"sends model.safetensors of org/m in another size than it states"


@pytest.fixture(autouse=True)
def _on_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(hub_fetch, "_RETRY_SECONDS", 0.0)


@pytest.fixture
def hub() -> Iterator[SmallHub]:
    files = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": WEIGHTS}
    with serving(SmallHub("org/m", files)) as small:
        yield small


def _fetch(hub: SmallHub, cache: Path) -> Path:
    environ = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    return hub_fetch.fetch(HubName("org/m", ""), NEEDED, NEEDED, lambda sentence: None, environ)


def _endless(*, packed: bool = False) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(200)
        if packed:
            handler.send_header("Content-Encoding", "gzip")
        handler.end_headers()
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        piece = bytes(1 << 22)
        with contextlib.suppress(OSError):
            for _ in range(1 << 14):  # 64 GB
                handler.wfile.write(packer.compress(piece) if packed else piece)

    return answer


def _row(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda listing: {**listing, "siblings": [listing["siblings"][0] | fields, *listing["siblings"][1:]]}


@pytest.mark.parametrize(
    "twist",
    [
        lambda listing: [1],
        lambda listing: None,
        lambda listing: "<html>",
        lambda listing: {**listing, "sha": 5},
        lambda listing: {**listing, "siblings": "abc"},
        lambda listing: {**listing, "siblings": [1]},
        lambda listing: {**listing, "siblings": [{}]},
        _row(rfilename=["config.json"]),
        _row(size="5"),
        _row(size=-5),
        _row(size=1.5),
        _row(size=float("nan")),
        _row(blobId=["a"]),
        _row(lfs=[1]),
        _row(lfs={"sha256": 5}),
    ],
)
def test_a_malformed_description_is_one_sentence(
    twist: Callable[[dict[str, Any]], object], hub: SmallHub, tmp_path: Path
) -> None:
    hub.instead[""] = lambda handler: handler.answer(200, json.dumps(twist(hub.listing())).encode())
    with pytest.raises(LocalFault, match=NO_LIST):
        _fetch(hub, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_an_endless_description_is_given_up(*, packed: bool, hub: SmallHub, tmp_path: Path) -> None:
    hub.instead[""] = _endless(packed=packed)
    with pytest.raises(LocalFault, match=r"describes org/m without end"):
        _fetch(hub, tmp_path / "cache")


@pytest.mark.parametrize(
    "answer",
    [
        _endless(),
        _endless(packed=True),
        lambda handler: handler.answer(200, WEIGHTS + b"more"),
        lambda handler: handler.answer(200, b"<html>log in</html>"),
        lambda handler: handler.answer(200, gzip.compress(WEIGHTS + b"more"), {"Content-Encoding": "gzip"}),
    ],
)
def test_a_file_of_another_size_than_stated_is_refused_and_leaves_no_byte(
    answer: Callable[[Any], None], hub: SmallHub, tmp_path: Path
) -> None:
    hub.instead["model.safetensors"] = answer
    with pytest.raises(LocalFault, match=OTHER_SIZE):
        _fetch(hub, tmp_path / "cache")
    left = [path.stat().st_size for path in tmp_path.rglob("*.echo2-incomplete")]
    assert left == [0]
    del hub.instead["model.safetensors"]
    assert (_fetch(hub, tmp_path / "cache") / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("seconds", ["1000000000", f"1{'0' * 30}"])
def test_a_hub_that_asks_for_patience_is_not_waited_for(seconds: str, hub: SmallHub, tmp_path: Path) -> None:
    hub.instead["model.safetensors"] = lambda handler: handler.answer(429, b"", {"Retry-After": seconds})
    with pytest.raises(HubUnreachable, match=r"cannot be fetched from .*429"):
        _fetch(hub, tmp_path / "cache")


def test_of_a_refusal_no_body_is_read(hub: SmallHub, tmp_path: Path) -> None:
    def refuse(handler: Any) -> None:
        handler.send_response(500)
        handler.end_headers()
        _endless()(handler)

    hub.instead[""] = refuse
    with pytest.raises(HubUnreachable, match=r"cannot be fetched from .*500"):
        _fetch(hub, tmp_path / "cache")


def test_a_redirect_to_another_host_does_not_get_the_token_and_one_to_a_file_is_refused(
    hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(SmallHub("org/m", hub.files)) as other:
        for place in ("", "model.safetensors"):
            hub.instead[place] = lambda handler: handler.answer(307, b"", {"Location": other.url + handler.path})
        assert (_fetch(hub, tmp_path / "cache") / "model.safetensors").read_bytes() == WEIGHTS
        hub.instead["model.safetensors"] = lambda handler: handler.answer(307, b"", {"Location": "file:///etc/passwd"})
        with pytest.raises(HubUnreachable, match=r"unsupported protocol"):
            _fetch(hub, tmp_path / "second")
    assert set(hub.tokens) == {"Bearer hf_secret"}
    assert set(other.tokens) == {None}


@pytest.mark.parametrize("name", ["..", "", ".lock", "a\0b", "\ud800", "x" * 300, "a\\b", 5])
def test_a_shard_without_a_plain_name_is_refused(name: object, hub: SmallHub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"]
    hub.files[INDEX] = json.dumps({"weight_map": {"w": name}}).encode()
    with pytest.raises(LocalFault, match=r"names the shard .{,210}, which is no plain name"):
        _fetch(hub, tmp_path / "cache")


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", "hf_é"), ("HTTP_PROXY", "nonsense://x")])
def test_a_setting_that_the_library_cannot_use_is_one_sentence(
    name: str, value: str, hub: SmallHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import close_session

    close_session()
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv(name, value)
    with pytest.raises(LocalFault, match=r"look at HF_ENDPOINT, HF_TOKEN and the variables of proxies"):
        _fetch(hub, tmp_path / "cache")
    close_session()
