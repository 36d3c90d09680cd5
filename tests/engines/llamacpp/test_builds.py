import ctypes
import struct
from types import SimpleNamespace

import pytest

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import builds
from echo2.engines.llamacpp.builds import BUILDS, Params


def defaults(layout: dict[str, int], fields: dict[str, tuple[str, object]]) -> Params:
    data = bytearray(ctypes.sizeof(Params))
    for name, offset in layout.items():
        form, value = fields[name]
        struct.pack_into(f"={form}", data, offset, value)
    return Params.from_buffer_copy(data)


@pytest.mark.parametrize("build", BUILDS)
def test_a_field_is_changed_where_it_lies_and_all_else_stays(build: str) -> None:
    layout = BUILDS[build]
    before = defaults(dict(layout.context), builds._CONTEXT)
    after = builds.context_params(before, layout, n_ctx=4096, kv_unified=True)
    changed = {at for at, (old, new) in enumerate(zip(bytes(before), bytes(after), strict=True)) if old != new}
    n_ctx = layout.context["n_ctx"]
    assert changed == {n_ctx + 1, layout.context["kv_unified"]}  # 512 becomes 4096
    assert struct.unpack_from("=i", bytes(after), n_ctx) == (4096,)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("of", ["model", "context"])
def test_no_two_fields_of_a_layout_overlap(build: str, of: str) -> None:
    fields = builds._MODEL if of == "model" else builds._CONTEXT
    offsets = getattr(BUILDS[build], of)
    assert offsets.keys() == fields.keys()
    taken = [
        at for name, start in offsets.items() for at in range(start, start + struct.calcsize(f"={fields[name][0]}"))
    ]
    assert len(taken) == len(set(taken))
    assert all(start % struct.calcsize(f"={fields[name][0]}") == 0 for name, start in offsets.items())


def test_a_struct_that_is_laid_out_otherwise_is_refused_before_anything_is_changed() -> None:
    layout = BUILDS["86a2835"]
    other = defaults(dict(BUILDS["9a3bf2b"].context), builds._CONTEXT)
    with pytest.raises(EngineError, match=r"parameter n_threads_batch is 0 by default, not 4: .* install mineru"):
        builds.context_params(other, layout, n_ctx=1)


def test_a_build_is_known_by_the_commit_that_it_names() -> None:
    assert builds.known_layout("86a2835-dirty") is builds.known_layout("86a283532072722c") is BUILDS["86a2835"]
    assert builds.known_layout("unknown") is None


def test_the_layout_of_llama_cpp_python_is_what_it_declares() -> None:
    class Model(ctypes.Structure):
        _fields_ = [("other", ctypes.c_int), *((name, ctypes.c_int64) for name in builds._MODEL)]

    class Context(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in builds._CONTEXT]

    module = SimpleNamespace(llama_model_params=Model, llama_context_params=Context)
    layout = builds.declared_layout(module)
    assert layout.model["devices"] == 8
    assert list(layout.context.values()) == list(range(0, 4 * len(builds._CONTEXT), 4))
    with pytest.raises(EngineError, match="declares other parameters"):
        builds.declared_layout(SimpleNamespace(llama_model_params=Model))
