"""Tell which texts a spreadsheet runs as a formula: names and accounts of others stand in CSV files. Pure."""

import re
from typing import Final

_BEGIN: Final = re.compile(r"[\s\0-\x20\x7f\u200b\ufeff]*[=+\-@|%\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""Begin of such a text: full-width forms too, and behind blanks and controls."""


def is_formula(text: str) -> bool:
    """Tell whether some spreadsheet runs a cell with this text. An apostrophe in front prevents it."""
    return _BEGIN.match(text) is not None
