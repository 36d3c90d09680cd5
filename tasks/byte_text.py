"""A tokenizer of any text, one token per byte of UTF-8: for commands that try a task without a model.

It is a tokenizer.json like a model's, so that a taskset can be tried whose library writes the prompts itself.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from echo2.tasks.tokenizer import BYTES, FileTokenizer

TURN_END = "<|end of turn|>"


class ByteText(FileTokenizer):
    """A `tasks.task.Tokenizer`. Token 0 ends a turn; token 1 + b is the byte b. What UTF-8 cannot hold becomes `?`."""

    def __init__(self) -> None:
        super().__init__(_byte_tokenizer(), 0)

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text: what the library makes of it too, in a tenth of the time."""
        return [1 + byte for byte in text.encode(errors="replace")]


def _byte_tokenizer() -> Tokenizer:
    spelled = sorted(BYTES, key=BYTES.__getitem__)
    tokenizer = Tokenizer(models.BPE({name: token for token, name in enumerate([TURN_END, *spelled])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([TURN_END])
    return tokenizer
