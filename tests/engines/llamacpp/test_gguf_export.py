"""GGUF files of model folders: llama.cpp cuts texts as transformers does, and what it would misread is refused."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures, backends, gguf_export, gguf_file
from echo2.engines.llamacpp.gguf_vocabulary import PRE_TOKENIZERS, SpecialTokens
from echo2.engines.llamacpp.sequences import Fed, Sequences
from echo2.weights.snapshot import Snapshot
from tests.support import bpe_tokenizers, llama_cpp

pytestmark = llama_cpp.needed
CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": bpe_tokenizers.VOCABULARY + 3, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip
SPECIAL = SpecialTokens(ends=(1, 2), begin=0)


def folder_of(path: Path, pre: str, **changes: Any) -> Path:
    """Write config.json and tokenizer.json; `changes`: of the latter."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(json.loads(bpe_tokenizers.trained(pre)) | changes))
    return path


def test_every_pre_tokenizer_that_is_known_is_tried_here() -> None:
    assert set(PRE_TOKENIZERS.values()) == bpe_tokenizers.PRE.keys()


@pytest.mark.slow
@pytest.mark.parametrize("pre", [*bpe_tokenizers.PRE, bpe_tokenizers.SENTENCE_PIECE])
def test_a_thousand_texts_have_the_ids_that_transformers_gives_them(pre: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", pre)
    keys = gguf_export.describe(folder, SPECIAL, "a template")
    assert keys["tokenizer.ggml.pre"] == ("default" if pre == bpe_tokenizers.SENTENCE_PIECE else pre)
    library, path = backends.library(), tmp_path / "vocabulary.gguf"
    gguf_file.write(library, path, keys, [])
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = bpe_tokenizers.texts(1000, composed=pre == "qwen2")
    with gguf_export.model_of(library, path, whole=False) as model:
        vocabulary = library.llama_model_get_vocab(model)
        ours = [gguf_export.tokenize(library, vocabulary, text) for text in texts]
    assert ours == [theirs(text).input_ids for text in texts]


def test_keys_name_the_special_tokens_and_the_rows_beyond_the_tokenizer(tmp_path: Path) -> None:
    keys = gguf_export.describe(folder_of(tmp_path, "llama-bpe"), SPECIAL._replace(pad=2), "a template")
    texts, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert isinstance(texts, list)
    assert isinstance(kinds, list)
    assert (texts[:3], kinds[:3]) == ([bpe_tokenizers.BEGIN, bpe_tokenizers.END, bpe_tokenizers.TURN], [3, 3, 3])
    assert (texts[-4:], kinds[-4:]) == ([bpe_tokenizers.WORD, "[PAD640]", "[PAD641]", "[PAD642]"], [4, 5, 5, 5])
    named = {name: keys[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    assert named == {"bos": 0, "eos": 1, "padding": 2}
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == (True, False)
    assert keys["tokenizer.chat_template"] == "a template"


def test_ends_that_llama_cpp_does_not_know_by_name_are_named_to_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gpt-2")
    assert "tokenizer.ggml.eot_token_id" not in gguf_export.describe(folder, SPECIAL, None)
    keys = gguf_export.describe(folder, SpecialTokens((1, 639, 9)), None)
    assert (keys["tokenizer.ggml.eot_token_id"], keys["tokenizer.ggml.eom_token_id"]) == (639, 9)
    with pytest.raises(EngineError, match=r"takes two ends of a turn besides .*, not \[639, 9, 10\]"):
        gguf_export.describe(folder, SpecialTokens((1, 639, 9, 10)), None)


def _changed(part: str, **changes: Any) -> dict[str, Any]:
    return {part: json.loads(bpe_tokenizers.trained("gpt-2"))[part] | changes}


SPLIT = {"type": "Split", "pattern": {"Regex": r"\w+|\W+"}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown expression": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}},
        "tokenizer.json splits texts by rules that have no name in llama.cpp known here; known are: gpt-2, llama-bpe",
    ),
    "no pre-tokenizer": ({"pre_tokenizer": None}, "splits texts by rules"),
    "an unknown kind of step": ({"pre_tokenizer": {"type": "Whitespace"}}, "splits texts by rules"),
    "a space before each text": (_changed("pre_tokenizer", add_prefix_space=True), "splits texts by rules"),
    "words": ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "is of type WordLevel"),
    "bytes as tokens of their own": (_changed("model", byte_fallback=True), "which llama.cpp's SentencePiece has not"),
    "another normal form": ({"normalizer": {"type": "NFKC"}}, "changes texts by .*NFKC"),
    "an added token that takes the space before it": (
        {"added_tokens": [
            {"id": 639, "content": bpe_tokenizers.WORD, "single_word": False, "lstrip": True, "rstrip": False,
             "normalized": False, "special": False},
        ]},
        "llama.cpp would cut 'a <tool> b<tool>\\\\n' into other tokens than",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_a_tokenizer_that_llama_cpp_would_misread_is_refused(fault: str, tmp_path: Path) -> None:
    changes, sentence = REFUSED[fault]
    with pytest.raises(EngineError, match=sentence):
        gguf_export.describe(folder_of(tmp_path, "gpt-2", **changes), SPECIAL, None)


def test_a_sentencepiece_whose_tokens_llama_cpp_would_join_otherwise_is_refused(tmp_path: Path) -> None:
    whole = json.loads(bpe_tokenizers.trained(bpe_tokenizers.SENTENCE_PIECE))
    model, pre = whole["model"], bpe_tokenizers.SENTENCE_PIECE
    refused: dict[str, dict[str, Any]] = {
        "joins tokens into": {"model": model | {"merges": model["merges"][:-1]}},
        "has fuse_unk = False": {"model": model | {"fuse_unk": False}},
        "lacks the unknown token or a byte": {"model": model | {"unk_token": None}},
        "changes or splits texts otherwise": {"normalizer": None},
        "splits texts otherwise": {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}},
    }
    for sentence, changes in refused.items():
        with pytest.raises(EngineError, match=sentence):
            gguf_export.describe(folder_of(tmp_path, pre, **changes), SPECIAL, None)


class Loaded(NamedTuple):
    """A model of a file, as `Sequences` reads it."""

    library: Any
    pointer: int
    architecture: Any
    vocabulary: int
    handle: int | None = None


@pytest.mark.parametrize("name", llama_cpp.MODELS)
def test_llama_cpp_computes_of_the_file_what_transformers_does_of_the_model(name: str, tmp_path: Path) -> None:
    disk = llama_cpp.make(tmp_path / "model", name)
    architecture, library = architectures.read(disk.folder), backends.library()
    words = [f"w{number}" for number in range(architecture.sizes["vocabulary"])]
    keys = {**architecture.keys, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": ["w 0"]}  # fmt: skip
    tensors = dict(disk.model.named_parameters())
    save_file(tensors, tmp_path / "weights.safetensors")
    gguf_export.write_weights(architecture, Snapshot(tmp_path / "weights.safetensors"), tmp_path / "model.gguf", keys)
    prompt = [3, 41, 7, 0, 19, 19, 30]
    with gguf_export.model_of(library, tmp_path / "model.gguf", whole=True) as pointer:
        sequences = Sequences(Loaded(library, pointer, architecture, len(words)), "float32", 1)
        first = sequences.take()
        logits = sequences.feed([Fed(token, position, first) for position, token in enumerate(prompt)]).copy()
        sequences.reset()
    with torch.no_grad():
        theirs = disk.model(torch.tensor([prompt])).logits[0].numpy()
    assert np.abs(logits - theirs).max() < 1e-4
