"""Convert text to tokens and back, by a tokenizer.json on disk or the demo's characters.

Rules
1. Nothing is added to a text: no begin-of-sequence, no template. The policy sees exactly the text that a task writes.
2. `decode` leaves out only the end of the turn, at the end: any other special token is part of the answer, and
   appears by its name. It never raises for ids of the model: those above the tokenizer's, which models are padded
   with, are no text.
3. Where a tokenizer's decoder only concatenates tokens (`Fuse`, `ByteLevel`), `decode` joins their bytes from a table.
   The text equals the library's, in an eighth of the time. The library runs all other decoders.
4. Normalisers and decoders that replace one after the other may make any number of characters of one. A chain that
   makes more than `MOST_GROWTH` is refused.
"""

import json
from collections.abc import Callable, Sequence
from math import ceil, prod
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from echo2.tasks.turn_ends import Ends, without_end

MOST_GROWTH: Final = 1_000
CHARACTERS = "0123456789+-*=><()., abcdefghijklmnopqrstuvwxyz\n"
PAD, EOS, CHAR_SIZE = 0, 1, 64


class TokenizerFault(ValueError):
    """A tokenizer.json that cannot be used; the message says why."""


class FileTokenizer:
    """`tasks.task.Tokenizer` by the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, eos: int, *others: int) -> None:
        self._tokenizer, self._ends = tokenizer, (eos, *others)
        self._size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._pieces: list[bytes] | None = None
        self._strings = _spell(tokenizer)
        for end in self._ends:
            if not 0 <= end < self._size:
                raise TokenizerFault(f"end-of-sequence {end} is not among the tokenizer's {self._size} ids")

    @property
    def eos(self) -> int:
        return self._ends[0]

    @property
    def ends(self) -> Ends:
        return self._ends

    @property
    def size(self) -> int:
        return self._size

    @property
    def learned_size(self) -> int:
        """The number of ids without those of added tokens, for which a model may have no row."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def save(self, path: Path) -> None:
        """Write it as a tokenizer.json."""
        self._tokenizer.save(str(path))

    def name_of(self, token: int) -> str:
        """Return a token as the vocabulary has it."""
        return str(self._tokenizer.id_to_token(token))

    def encode(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the library raises bare Exception, where a token is missing
            told = f"the model's tokenizer cannot write {text[:80]!r} ({error}): choose a model with a larger alphabet"
            raise TokenizerFault(told) from error

    def decode(self, tokens: Sequence[int]) -> str:
        tokens = without_end(tokens, self._ends)
        if self._strings is None:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
        if self._pieces is None:
            self._pieces = pieces(self._tokenizer, self._size, self._strings)
        try:
            if len(tokens) < 2:  # itemgetter of one index returns no tuple
                return b"".join(self._pieces[token] for token in tokens).decode(errors="replace")
            return b"".join(itemgetter(*tokens)(self._pieces)).decode(errors="replace")
        except IndexError:
            known = [self._pieces[token] for token in tokens if token < self._size]
            return b"".join(known).decode(errors="replace")


Spell = Callable[[str], bytes]
"""Decode a token, as the vocabulary has it, to the bytes that it stands for."""


def _spell(tokenizer: Tokenizer) -> Spell | None:
    """Choose the decoding of single tokens where rule 3 applies."""
    kind = None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())["type"]
    spells: dict[str | None, Spell] = {"Fuse": str.encode, "ByteLevel": _byte_level}
    return spells.get(kind)


def pieces(tokenizer: Tokenizer, size: int, spell: Spell) -> list[bytes]:
    """Return the bytes of each token id; empty for ids without a token."""
    tokens = [tokenizer.id_to_token(index) for index in range(size)]
    return [b"" if token is None else spell(token) for token in tokens]


def _byte_level(token: str) -> bytes:
    """Decode a token of byte-level BPE: each character stands for a byte, or the token stands for itself."""
    try:
        return bytes(map(BYTES.__getitem__, token))
    except KeyError:
        return token.encode()


def _byte_characters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others for 256 and following, in their order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTES = _byte_characters()
"""Character of byte-level BPE -> the byte that it stands for."""


def load(path: Path, eos: int, *others: int) -> FileTokenizer:
    """Load the tokenizer of a tokenizer.json file. `eos`: the id that ends a turn. `others`: further ones that do.
    Raises TokenizerFault."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except BaseException as error:  # the library raises bare Exception, for a missing file too; its panics are none
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerFault(f"{path}: {error}") from error
    for part in (tokenizer.normalizer, tokenizer.decoder):
        if part is not None and _growth(json.loads(part.__getstate__())) > MOST_GROWTH:
            raise TokenizerFault(
                f"{path} may make more than {MOST_GROWTH} characters of one (a chain of replacements): no memory would "
                "suffice for such texts"
            )
    return FileTokenizer(tokenizer, eos, *others)


def _growth(part: dict[str, Any]) -> int:
    """Return the most characters that a normaliser or a decoder makes of one (rule 4)."""
    if part["type"] == "Sequence":
        return prod(map(_growth, part.get("normalizers") or part.get("decoders") or ()))
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")  # else a regular expression, which may stand for nothing at all
        return max(1, ceil(len(part["content"]) / len(replaced))) if replaced else 1 + len(part["content"])
    return 1 + len(part["prepend"]) if part["type"] == "Prepend" else 1


def char_tokenizer() -> Tokenizer:
    """Make the demo's tokenizer: <pad> = 0, <eos> = 1, then `CHARACTERS`, then filler up to `CHAR_SIZE` ids.

    The filler gives a name to every id of a model with 64 outputs. It is no special token: an answer with a filler
    in it decodes to a wrong answer. Encoding a character that is not among `CHARACTERS` raises.
    """
    names = ["<pad>", "<eos>", *CHARACTERS]
    names += [f"<{index}>" for index in range(len(names), CHAR_SIZE)]
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    return tokenizer
