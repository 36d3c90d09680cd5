"""Single changes, also in ranges as a GPU gets them; test_engine.py shows whole versions."""

from collections.abc import Iterator

import numpy as np
import pytest

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures, backends, resident_model
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change
from echo2.weights.snapshot import Snapshot
from tests.support import llama_cpp
from tests.support.llama_cpp import DEVICE
from tests.support.tiny_model import OnDisk

pytestmark = llama_cpp.needed
NAMES = ("model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.mlp.down_proj.weight")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    return llama_cpp.make(tmp_path_factory.mktemp("llama"), "llama, tied")


def build(model: OnDisk, dtype: str) -> ResidentModel:
    library = backends.library()
    return ResidentModel(
        library,
        architectures.read(model.folder),
        Snapshot(model.snapshot),
        dtype,
        backends.device(library, DEVICE),  # type: ignore[arg-type]
    )


@pytest.fixture(params=["float32", "float16", "bfloat16"])
def resident(request: pytest.FixtureRequest, llama: OnDisk) -> Iterator[ResidentModel]:
    model = build(llama, request.param)
    yield model
    model.close()


class Edited:
    """A snapshot of which some elements have other bits."""

    def __init__(self, snapshot: Snapshot, name: str, index: "np.ndarray", bits: Bits) -> None:  # type: ignore[type-arg]
        self._snapshot, self._name, self._index, self._bits = snapshot, name, index, bits
        self.path, self.tensors, self.aliases = snapshot.path, snapshot.tensors, snapshot.aliases

    def bits(self, name: str) -> Bits:
        content = self._snapshot.bits(name).copy()
        if name == self._name:
            content[self._index] = self._bits
        return content


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.5], ids=["few", "some", "dense"])
@pytest.mark.parametrize("direct", [True, False], ids=["memory", "ranges"])
def test_a_change_gives_the_very_bits_of_a_load_and_its_undoing_those_before(
    resident: ResidentModel, llama: OnDisk, name: str, share: float, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_model, "MOST_GAP_BYTES", 600)
    snapshot = Snapshot(llama.snapshot)
    if not direct:
        resident._targets = {
            own: [target._replace(memory=None) for target in targets] for own, targets in resident._targets.items()
        }
    elif DEVICE != "cpu":
        pytest.skip("only the CPU's memory is written to without a transfer")
    entry = next(entry for entry in snapshot.tensors if entry.name == name)
    random = np.random.default_rng(5)
    index = np.flatnonzero(random.random(entry.elements) < share).astype(np.int64)
    index = index if len(index) else np.array([entry.elements - 1])
    new = (snapshot.bits(name)[index] ^ random.integers(1, 8, len(index), np.uint16)).astype(np.uint16)
    edited = Edited(snapshot, name, index, new)
    before = resident.read(name)
    resident.apply([Change(tensor=entry, index=index, bits=new)], edited)
    after = resident.read(name)
    assert len(after) == (2 if name == NAMES[0] else 1)
    fresh = ResidentModel(resident.library, resident.architecture, edited, resident._dtype, resident.handle)
    assert all(np.array_equal(one, other) for one, other in zip(after, fresh.read(name), strict=True))
    fresh.close()
    assert not np.array_equal(before[0], after[0])
    resident.apply([Change(tensor=entry, index=index, bits=snapshot.bits(name)[index])], snapshot)
    assert all(np.array_equal(one, other) for one, other in zip(before, resident.read(name), strict=True))


def test_a_weight_that_float16_cannot_hold_is_refused_by_its_name(llama: OnDisk) -> None:
    snapshot = Snapshot(llama.snapshot)
    large = Edited(snapshot, NAMES[2], np.array([7]), np.array([0x4780], np.uint16))  # 65,536 in bfloat16
    library = backends.library()
    with pytest.raises(EngineError, match=r"model\.layers\.0\.mlp\.down_proj\.weight has the weight 65536\.0"):
        ResidentModel(
            library,
            architectures.read(llama.folder),
            large,
            "float16",
            backends.device(library, DEVICE),  # type: ignore[arg-type]
        )
    build(llama, "float16").close()


def test_memory_that_another_program_took_in_mid_load_is_a_sentence(
    llama: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then returns no model, and logs why."""
    library = backends.library()

    def fails(*arguments: object) -> None:
        library._on_log(4, b"unable to allocate Vulkan0 buffer", None)

    monkeypatch.setattr(library, "llama_model_init_from_user", fails)
    with pytest.raises(EngineError, match="cannot load this model: unable to allocate Vulkan0 buffer"):
        build(llama, "float32")


def test_ranges_join_what_lies_near(llama: OnDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(llama, "float32")
    (target,) = model._targets[NAMES[2]]
    index = np.array([0, 1, target.width * 2, target.width * 60 + 3])
    assert list(resident_model._ranges(target, index)) == [(0, 61)]
    monkeypatch.setattr(resident_model, "MOST_GAP_BYTES", 3 * 4 * target.width)
    assert list(resident_model._ranges(target, index)) == [(0, 3), (60, 61)]
    model.close()
