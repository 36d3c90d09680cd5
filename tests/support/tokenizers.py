"""Tokenizers for tests of tasks: the demo's characters, and one that spells any text."""

from echo2.tasks import tokenizer

CHARS = tokenizer.FileTokenizer(tokenizer.char_tokenizer(), tokenizer.EOS)


class Letters:
    """A tokenizer of any text, one token per character: for tasks whose prompts the demo's characters cannot spell."""

    eos, size, ends = 0, 0x110000, (0,)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: object) -> str:
        assert isinstance(tokens, list | tuple)
        return "".join(chr(token) for token in tokens if token != self.eos)


LETTERS = Letters()
