"""Payments as CSV: `key,account,amount,currency`, safe to open in a spreadsheet.

Rules
1. Every cell is quoted, and a quote in it is doubled (RFC 4180). Lines end with CR LF.
2. A cell whose first character behind blanks, tabs, new lines and other controls would begin a formula gets an
   apostrophe in front, and so does a cell that begins with a tab or a new line.
"""

from typing import Final

from echo2.coordinator.rails import account_text, minor_units
from echo2.coordinator.rails.file_rail import FileFormat, PaymentBatch
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.protocol.payee_accounts import FORMULA

_BLANKS: Final = "".join(map(chr, range(33))) + "\x7f\xa0\u200b\ufeff"
_WIDE_CHARACTERS: Final = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The full-width forms of the formula characters, which some spreadsheets take for them."""


def cell(text: str) -> str:
    """Return a quoted cell (rules 1 and 2)."""
    inner = text.lstrip(_BLANKS)
    risky = inner.startswith((*FORMULA, *_WIDE_CHARACTERS, "|", "%")) or text[:1] in ("\t", "\r", "\n")
    return '"' + ("'" if risky else "") + text.replace('"', '""') + '"'


def csv_format(currency: str) -> FileFormat:
    def render(batch: PaymentBatch) -> bytes:
        rows = [["key", "account", "amount", "currency"]]
        rows += [[row.key, row.account, minor_units.decimal(row.amount), currency] for row in batch.rows]
        return "".join(",".join(map(cell, row)) + "\r\n" for row in rows).encode()

    return FileFormat("csv", render, account_text.check)


CSV_RAIL: Final = RailKind(file_format=lambda settings: csv_format(settings.currency))
