"""A stream in memory that says that it is a terminal."""

import io


class TextTerminal(io.StringIO):
    """The text that was written to a terminal."""

    def isatty(self) -> bool:
        return True
