"""Text to tokens and back: a tokenizer.json on disk, or the demo's characters.

Rules
1. Nothing is added to a text: no begin-of-sequence, no template. What a task writes is what the policy sees.
2. `decode` leaves special tokens out and never raises for ids in range.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

CHARACTERS = "0123456789+-*=><()., abcdefghijklmnopqrstuvwxyz\n"
PAD, EOS, CHAR_SIZE = 0, 1, 64


class TokenizerFault(ValueError):
    """A tokenizer.json that cannot be used; the message says why."""


class FileText:
    """`tasks.task.Text` by the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer, self._eos = tokenizer, eos
        self._size = tokenizer.get_vocab_size(with_added_tokens=True)
        if not 0 <= eos < self._size:
            raise TokenizerFault(f"end-of-sequence {eos} is not among the tokenizer's {self._size} ids")

    @property
    def eos(self) -> int:
        return self._eos

    @property
    def size(self) -> int:
        return self._size

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


def load(path: Path, eos: int) -> FileText:
    """The tokenizer of a tokenizer.json file. `eos`: the id that ends a turn. Raises TokenizerFault."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception, for a missing file too
        raise TokenizerFault(f"{path}: {error}") from error
    return FileText(tokenizer, eos)


def char_tokenizer() -> Tokenizer:
    """The demo's tokenizer: <pad> = 0, <eos> = 1, then `CHARACTERS`, then filler up to `CHAR_SIZE` ids.

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
