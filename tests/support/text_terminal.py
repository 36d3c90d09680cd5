"""A stream in memory that says that it is a terminal."""

import io


class TextTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True
