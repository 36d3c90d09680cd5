"""Describe a tokenizer.json to llama.cpp: vocabulary, merges, pre-tokenizer, special tokens and template, as GGUF keys.

Rules
1. Byte-level BPE whose text is split as by one of `PRE_TOKENIZERS` is known, and SentencePiece's BPE; any other is
   refused in a sentence, for llama.cpp would cut texts into other tokens without a word. It is told by the rules of the
   file, not by its words.
2. The list has one token per row of the model's embedding: rows beyond the tokenizer are unused tokens.
3. llama.cpp joins any two of SentencePiece's tokens that make a third, the ones of the best score first. A
   tokenizer.json has a list of such pairs, the best first. It is refused unless the one follows from the other.
4. A token is begun with, or ended by, where the tokenizer itself adds it to a text.
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
_NEUTRAL: Final = {"dropout": (None, 0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, "")}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_SENTENCE_PIECE: Final = {"dropout": (None, 0), "continuing_subword_prefix": (None, ""), "fuse_unk": (True,),
                          "end_of_word_suffix": (None, ""), "ignore_merges": (None, False)}  # fmt: skip
_SPACES_AS_TOKENS: Final = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
]}  # fmt: skip


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
    pieces = model.get("type") == "BPE" and bool(model.get("byte_fallback"))
    family, pre = ("llama", "default") if pieces else ("gpt2", _pre_tokenizer(path, content))
    texts, kinds = _tokens(tokenizer, content.get("added_tokens") or [], rows)
    begins, ends = _additions(tokenizer)
    begin = begins if begins is not None else special.begin
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": family, "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.eos_token_id": special.ends[0],
        "tokenizer.ggml.add_bos_token": begins is not None, "tokenizer.ggml.add_eos_token": ends,
    }  # fmt: skip
    if pieces:
        keys |= _sentence_pieces(path, content, texts, kinds)
    else:
        keys["tokenizer.ggml.merges"] = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
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


def _sentence_pieces(path: Path, content: Mapping[str, Any], texts: list[str], kinds: list[int]) -> dict[str, Value]:
    """Return the keys of SentencePiece's BPE, and set the kinds of its bytes and of the unknown token. Raises
    EngineError (rules 1 and 3)."""
    model, vocabulary = content["model"], content["model"]["vocab"]
    for setting, allowed in _SENTENCE_PIECE.items():
        if model.get(setting) not in allowed:
            raise EngineError(f"{path} has {setting} = {model.get(setting)!r}, which llama.cpp's SentencePiece has not")
    if content.get("normalizer") != _SPACES_AS_TOKENS or content.get("pre_tokenizer") is not None:
        raise EngineError(f"{path} changes or splits texts otherwise than llama.cpp's SentencePiece does")
    unknown, *own_bytes = (
        vocabulary.get(name, -1) for name in (model.get("unk_token"), *(f"<0x{byte:02X}>" for byte in range(256)))
    )
    if not all(0 <= number < len(texts) for number in (unknown, *own_bytes)) or any("\0" in text for text in texts):
        raise EngineError(f"{path} lacks the unknown token or a byte's, or one of its tokens has a zero byte in it")
    for number in own_bytes:
        kinds[number] = _BYTE
    kinds[unknown] = _UNKNOWN
    ranks = dict[str, list[int]]()
    for rank, pair in enumerate(model["merges"]):
        ranks.setdefault("".join(pair.split(" ") if isinstance(pair, str) else pair), []).append(rank)
    for text, kind in zip(texts, kinds, strict=True):
        pairs = sum(text[:cut] in vocabulary and text[cut:] in vocabulary for cut in range(1, len(text)))
        stated = ranks.get(text, [])
        if kind == _NORMAL and stated != list(range(stated[0], stated[0] + pairs) if stated else range(pairs)):
            raise EngineError(f"{path} joins tokens into {text!r} otherwise than llama.cpp's SentencePiece does")
    return {
        "tokenizer.ggml.scores": [-float(ranks[text][0]) if text in ranks else 0.0 for text in texts],
        "tokenizer.ggml.unknown_token_id": unknown, "tokenizer.ggml.add_space_prefix": True,
    }  # fmt: skip


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
    """Return the token that the tokenizer puts before a text, if it does, and whether it puts one behind (rule 4)."""
    plain, whole = (tokenizer.encode("a", add_special_tokens=add).ids for add in (False, True))
    before = next((number for number in range(len(whole)) if whole[number : number + len(plain)] == plain), 0)
    return whole[0] if before else None, len(whole) > before + len(plain)
