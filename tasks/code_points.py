"""A tokenizer of any text, one token per Unicode code point: for commands that try a task without a model."""

from collections.abc import Sequence

from tasks.turn_ends import without_end

REPLACEMENT = 0xFFFD


class CodePoints:
    """A `tasks.task.Tokenizer`. Token 0 ends a turn; what no text can hold becomes U+FFFD."""

    eos, size, ends = 0, 0x110000, (0,)

    def encode(self, text: str) -> list[int]:
        """Return the code points of a text."""
        return [REPLACEMENT if character == "\0" else ord(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens, without an end at their end."""
        tokens = without_end(tokens, self.ends)
        return "".join(chr(REPLACEMENT if 0xD800 <= token <= 0xDFFF else token) for token in tokens)
