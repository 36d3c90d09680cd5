"""Show the words of other programs and of people on a terminal: characters that control it, or turn text round, are
replaced."""


def printable(text: object) -> str:
    """Return a text in which "?" stands for each character that cannot be printed, such as escapes and new lines."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))
