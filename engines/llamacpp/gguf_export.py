"""Write a model folder as one GGUF file that any program with llama.cpp loads, and prove that llama.cpp reads it right.

Rules
1. Matrices keep their type, bit for bit; vectors are float32, as llama.cpp's operations want them.
2. Before any weight is written, and again with the whole file, llama.cpp cuts `PROBES` and the special tokens into the
   tokens of tokenizer.json, and knows each end of a turn. A model for which it does not is refused.
3. llama.cpp knows most ends by their text. Up to two others are named to it.
"""

import ctypes
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_bool, c_char_p, c_int32, c_void_p
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures, backends, builds, gguf_file, gguf_vocabulary
from echo2.engines.llamacpp.architectures import Architecture, TensorSource
from echo2.engines.llamacpp.casts import Values, cast
from echo2.engines.llamacpp.gguf_file import FilledTensor, Stored, TensorPlan, Value
from echo2.engines.llamacpp.gguf_vocabulary import SpecialTokens
from echo2.engines.llamacpp.library import Library
from echo2.engines.llamacpp.resident_model import check_shapes
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot

PROBES: Final = (
    "Hello world! It's 9 o'clock, we'LL see; they'd've known.", "  two  spaces\n\n\n and\ttabs \r\n\r\n   ",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1.5e-3, 0xFF]}  # 10_000\n", "1234567 3.14159 x1 ½ ٣٤٥ Ⅷ",
    "Ünïcödé, naïve café: 你好世界。こんにちは Привет שלום العربية हिन्दी ไทย 한국어",
    "🙂👩\u200d👧🏽 ∑∫√ \\frac{1}{2} $x^2$ «…» —",
)  # fmt: skip
"""Texts in Unicode's composed form: llama.cpp composes none."""
MOST_SPECIALS: Final = 256
_TYPES: Final[dict[str, Stored]] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_FILE_TYPES: Final[dict[Stored, int]] = {"float32": 0, "float16": 1, "bfloat16": 32}
_UNREAD: Final = "rotary_emb.inv_freq"
"""A buffer of old models' files, which follows from config.json."""
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "llama_model_load_from_file": (c_void_p, [c_char_p, builds.Params]),
    "llama_tokenize": (c_int32, [c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool]),
    "llama_vocab_is_eog": (c_bool, [c_void_p, c_int32]),
}


def describe(folder: Path, special: SpecialTokens, template: str | None) -> dict[str, Value]:
    """Return the keys of a model folder's file, tried on llama.cpp without the weights (rule 2). `template`: chat
    template. Raises EngineError."""
    architecture, library = architectures.read(folder), backends.library()
    vocabulary = gguf_vocabulary.describe(folder, architecture.sizes["vocabulary"], special, template)
    keys: dict[str, Value] = {**architecture.keys, **vocabulary}
    with tempfile.TemporaryDirectory(prefix="echo2-") as scratch:
        path = Path(scratch) / "vocabulary.gguf"
        gguf_file.write(library, path, keys, [])
        with model_of(library, path, whole=False) as model:
            unknown = _unknown_ends(library, model, special)
        if len(unknown) > 2:
            raise EngineError(f"llama.cpp takes two ends of a turn besides those it knows by name, not {unknown}")
        keys |= {f"tokenizer.ggml.{name}_token_id": end for name, end in zip(("eot", "eom"), unknown, strict=False)}
        gguf_file.write(library, path, keys, [])
        _check(library, path, folder, special, whole=False)
    return keys


def write(folder: Path, path: Path, keys: Mapping[str, Value], special: SpecialTokens) -> None:
    """Write the file of a model folder with one file of weights. `keys`: those of `describe`, and further ones. Raises
    EngineError, `WeightsError`, `DiskFull`."""
    library, weights = backends.library(), Snapshot(folder / "model.safetensors")
    write_weights(architectures.read(folder), weights, path, keys)
    _check(library, path, folder, special, whole=True)


def write_weights(
    architecture: Architecture, weights: Snapshot, path: Path, keys: Mapping[str, Value], matrices: Stored | None = None
) -> None:
    """Write keys and weights, and load nothing of it. `matrices`: their type; None: their own. Raises as `write`."""
    read = [entry for entry in weights.tensors if not entry.name.endswith(_UNREAD)]
    check_shapes(architecture, read, weights.path)
    if other := [entry for entry in read if entry.dtype not in _TYPES]:
        raise EngineError(f"{other[0].name} is of type {other[0].dtype}: GGUF files are written of {', '.join(_TYPES)}")
    entries = {entry.name: entry for entry in read}
    kind = _FILE_TYPES[matrices or _TYPES[max(read, key=lambda entry: entry.elements).dtype]]
    entries |= {alias: entries[name] for alias, name in weights.aliases.items()}
    tensors = [
        _tensor_of(name, source, entries, weights, matrices) for name, source in architecture.file_tensors(entries)
    ]
    gguf_file.write(backends.library(), path, {**keys, "general.file_type": kind}, tensors)


def _tensor_of(
    name: str, source: TensorSource, entries: Mapping[str, TensorEntry], weights: Snapshot, matrices: Stored | None
) -> FilledTensor:
    """Return a tensor of the file (rule 1)."""
    if source.name is None:
        values = np.asarray(source.values, np.float32)
        return FilledTensor(TensorPlan(name, "float32", values.shape), lambda: values)
    entry = entries[source.name]
    stored = "float32" if len(entry.shape) == 1 else matrices or _TYPES[entry.dtype]

    def read() -> Values:
        rows = weights.bits(entry.name).reshape(entry.shape[0], -1)
        rows = rows if source.rows is None else rows[source.rows]
        return cast(rows.reshape(-1), entry.dtype, stored, entry.name)

    return FilledTensor(TensorPlan(name, stored, entry.shape), read)


def _check(library: Library, path: Path, folder: Path, special: SpecialTokens, *, whole: bool) -> None:
    """Check a file against the folder's tokenizer (rule 2). Raises EngineError."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()][:MOST_SPECIALS]
    with model_of(library, path, whole=whole) as model:
        vocabulary = library.llama_model_get_vocab(model)
        for text in (*PROBES, *(f"a {token} b{token}\n" for token in added)):
            if tokenize(library, vocabulary, text) != tokenizer.encode(text).ids:
                raise EngineError(f"llama.cpp would cut {text!r} into other tokens than {folder / 'tokenizer.json'}")
        if unknown := _unknown_ends(library, model, special):
            raise EngineError(f"llama.cpp would not end a turn at token {unknown[0]}")


def _unknown_ends(library: Library, model: int, special: SpecialTokens) -> list[int]:
    """Return the ends of a turn at which llama.cpp would go on."""
    vocabulary = library.llama_model_get_vocab(model)
    return [end for end in special.ends if not _call(library, "llama_vocab_is_eog", vocabulary, end)]


@contextmanager
def model_of(library: Library, path: Path, *, whole: bool) -> Iterator[int]:
    """Yield the llama_model of a file. `whole`: whether its tensors are loaded too. Raises EngineError."""
    devices = backends.device_list(None)
    params = builds.model_params(
        library.llama_model_default_params(), library.layout, devices=ctypes.addressof(devices), n_gpu_layers=0,
        use_extra_bufts=False, vocab_only=not whole,
    )  # fmt: skip
    model = _call(library, "llama_model_load_from_file", str(path).encode(), params)
    if not model:
        raise EngineError(f"llama.cpp cannot load this model as a file: {library.reason('it gives no reason')}")
    try:
        yield int(model)
    finally:
        library.llama_model_free(model)


def tokenize(library: Library, vocabulary: int, text: str) -> list[int]:
    """Return the tokens of a text by llama.cpp, special ones by their names. `vocabulary`: llama_vocab."""
    content = text.encode()
    tokens = (c_int32 * (len(content) + 8))()
    number = _call(library, "llama_tokenize", vocabulary, content, len(content), tokens, len(tokens), True, True)
    return list(tokens[:number])


def _call(library: Library, name: str, *arguments: Any) -> Any:
    return library.other(name, *_FUNCTIONS[name])(*arguments)
