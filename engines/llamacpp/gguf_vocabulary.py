"""Describe a tokenizer.json to llama.cpp: vocabulary, merges, pre-tokenizer, special tokens and template, as GGUF keys.

Rules
1. Byte-level BPE whose text is split as by one of `PRE_TOKENIZERS` is known; any other is refused in a sentence, for
   llama.cpp would cut texts into other tokens without a word. It is told by the rules of the file, not by its words.
2. The list has one token per row of the model's embedding: rows beyond the tokenizer are unused tokens.
3. A token is begun with, or ended by, where the tokenizer itself adds it to a text.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp.gguf_file import Value

_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPACES: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT: Final = "each digit"
PRE_TOKENIZERS: Final[dict[tuple[tuple[str, ...], bool], str]] = {
    ((_GPT2,), False): "gpt-2",
    ((_ENDINGS + r"\p{N}{1,3}" + _SPACES,), True): "llama-bpe",
    ((_ENDINGS + r"\p{N}{1,3}" + _SPACES,), False): "smaug-bpe",
    ((_ENDINGS + r"\p{N}" + _SPACES,), False): "qwen2",
    ((_DIGIT, _GPT2), False): "smollm",
}
"""The expressions that split a text, and whether a word of the vocabulary stays whole -> llama.cpp's name."""
_NEUTRAL: Final = {"dropout": (None, 0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""),
                   "byte_fallback": (None, False)}  # fmt: skip
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


class SpecialTokens(NamedTuple):
    """`ends`: the tokens that end a turn, the first of which is the end of a text. `begin`, `pad`: None: unnamed."""

    ends: tuple[int, ...]
    begin: int | None = None
    pad: int | None = None


def describe(folder: Path, rows: int, special: SpecialTokens, template: str | None) -> dict[str, Value]:
    """Return the keys of a model folder's tokenizer. `rows`: rows of the embedding. `template`: chat template. Raises
    EngineError (rule 1)."""
    path = folder / "tokenizer.json"
    try:
        content = json.loads(path.read_bytes())
        tokenizer = Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises bare Exception
        raise EngineError(f"{path} cannot be read ({error}): fetch it again") from error
    model = content["model"]
    pre = _pre_tokenizer(path, content)
    texts, kinds = _tokens(tokenizer, content.get("added_tokens") or [], rows)
    begins, ends = _additions(tokenizer)
    begin = begins if begins is not None else special.begin
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.eos_token_id": special.ends[0],
        "tokenizer.ggml.add_bos_token": begins is not None, "tokenizer.ggml.add_eos_token": ends,
        "tokenizer.ggml.merges": [one if isinstance(one, str) else " ".join(one) for one in model["merges"]],
    }  # fmt: skip
    keys |= {f"tokenizer.ggml.{name}_token_id": one for name, one in (("bos", begin), ("padding", special.pad))
             if one is not None and one < rows}  # fmt: skip
    return keys if template is None else keys | {"tokenizer.chat_template": template}


def _pre_tokenizer(path: Path, content: Mapping[str, Any]) -> str:
    """Return llama.cpp's name of the pre-tokenizer. Raises EngineError (rule 1)."""
    model, normalizer = content["model"], content.get("normalizer")
    if model.get("type") != "BPE":
        raise EngineError(f"{path} is of type {model.get('type')}: GGUF files are written for byte-level BPE")
    for setting, neutral in _NEUTRAL.items():
        if model.get(setting) not in neutral:
            raise EngineError(f"{path} has {setting} = {model[setting]!r}: GGUF files are written for byte-level BPE")
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise EngineError(f"{path} changes texts by {json.dumps(normalizer):.60}, which no GGUF file can say")
    splits = _splits(content.get("pre_tokenizer") or {})
    name = PRE_TOKENIZERS.get((splits, bool(model.get("ignore_merges")))) if splits else None
    if name is None:
        known = ", ".join(sorted(PRE_TOKENIZERS.values()))
        raise EngineError(f"{path} splits texts by rules that have no name in llama.cpp known here; known are: {known}")
    return name


def _splits(step: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the expressions of the steps before the bytes; None: a step is of another kind."""
    steps = step.get("pretokenizers", []) if step.get("type") == "Sequence" else [step]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    splits = list[str]()
    for one in steps[:-1]:
        if one.get("type") == "Digits" and one.get("individual_digits"):
            splits.append(_DIGIT)
        elif one.get("type") == "Split" and one.get("behavior") == "Isolated" and not one.get("invert"):
            splits.append(str(one.get("pattern", {}).get("Regex")))
        else:
            return None
    return (*splits, _GPT2) if steps[-1].get("use_regex", True) else tuple(splits)


def _tokens(tokenizer: Tokenizer, added: list[Mapping[str, Any]], rows: int) -> tuple[list[str], list[int]]:
    """Return the text and the kind of each token (rule 2)."""
    texts, kinds = [f"[PAD{number}]" for number in range(rows)], [_UNUSED] * rows
    for text, number in tokenizer.get_vocab(with_added_tokens=True).items():
        if number < rows:
            texts[number], kinds[number] = text, _NORMAL
    for one in added:
        if one["id"] < rows:
            kinds[one["id"]] = _CONTROL if one.get("special") else _USER_DEFINED
    return texts, kinds


def _additions(tokenizer: Tokenizer) -> tuple[int | None, bool]:
    """Return the token that the tokenizer puts before a text, if it does, and whether it puts one behind (rule 3)."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=add).ids for add in (False, True))
    before = next((number for number in range(len(whole)) if whole[number : number + len(plain)] == plain), 0)
    return whole[0] if before else None, len(whole) > before + len(plain)
