"""Byte-level BPE tokenizers with the pre-tokenizers of model families, trained here; and texts that try them."""

import functools
import random
import unicodedata
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SPACES: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BEGIN, END, TURN, WORD = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<tool>"
"""Added tokens, in this order; the last is no special one."""
VOCABULARY: Final = 640
_PIECES: Final = (
    "don't", "WE'LL", "it's", "Hello", " world", "naïve", "Zürich", "日本語", "你好", "世界。", "Привет", "שָׁלוֹם",
    "العربية", "हिन्दी", "ภาษาไทย", "한국어", "🙂", "👩\u200d👧🏽", "é", "e\u0301", "ﬁ", "Ǆ", "0", "12", "123",
    "1234567", "3.14", "1e-5", "½", "٣٤٥", "Ⅷ", "²", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ",
    "\u00a0", "\u3000", "\u200b", "def f(x):", "    return", " x**2", "{'a': [1]}", '"b"', "!=", "->", "//", "/* c */",
    "\\frac{1}{2}",
    "$x^2$", "<b>", "&amp;", "...", "—", "«q»", "#!", "__init__", "camelCase", "SCREAMING_CASE", "x", "A", "_", "'",
    "\u0000", "\ufeff",
)  # fmt: skip


def _split(expression: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE: Final[dict[str, Any]] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-bpe": _split(_ENDINGS + r"\p{N}{1,3}" + _SPACES),
    "smaug-bpe": _split(_ENDINGS + r"\p{N}{1,3}" + _SPACES),
    "qwen2": _split(_ENDINGS + r"\p{N}" + _SPACES),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
"""llama.cpp's name -> the rules by which families split a text."""
SENTENCE_PIECE: Final = "sentencepiece"


@functools.cache
def trained(name: str) -> str:
    """Return the tokenizer.json of one of `PRE`, or of `SENTENCE_PIECE`."""
    if name == SENTENCE_PIECE:
        return _sentence_piece()
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = PRE[name]
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    specials = [AddedToken(text, special=True, normalized=False) for text in (BEGIN, END, TURN)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 1, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    tokenizer.train_from_iterator(texts(400, seed=1), trainer)
    tokenizer.add_tokens([AddedToken(WORD, normalized=False)])
    if name in ("llama-bpe", "smaug-bpe"):
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{BEGIN} $A",
                    pair=f"{BEGIN} $A {BEGIN} $B",
                    special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
                ),
            ]
        )
    return str(tokenizer.to_str())


def _sentence_piece() -> str:
    """Return a tokenizer.json as transformers makes it of SentencePiece's BPE: any two tokens that make a third are a
    merge."""
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    learned = Tokenizer(models.BPE())
    learned.normalizer = spaces
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 261, show_progress=False)
    learned.train_from_iterator([text.replace("\0", "") for text in texts(400, seed=1)], trainer)
    specials = (BEGIN, END, TURN, "<unk>")
    pieces = sorted(learned.get_vocab(), key=learned.get_vocab().__getitem__)
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {piece: number for number, piece in enumerate(names)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(WORD, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return str(tokenizer.to_str())


def texts(number: int, seed: int = 0, *, composed: bool = False) -> list[str]:
    """Return texts of words of many scripts, code, digits and spaces, special tokens among them. `composed`: in
    Unicode's composed form."""
    rng = random.Random(seed)
    pieces = [*_PIECES, BEGIN, TURN, WORD, END]
    made = ["".join(rng.choices(pieces, k=rng.randrange(1, 24))) for _ in range(number)]
    return [unicodedata.normalize("NFC", text) for text in made] if composed else made
