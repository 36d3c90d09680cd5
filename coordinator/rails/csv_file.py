"""Payments as CSV: `key,account,amount,currency`, safe to open in a spreadsheet.

Rules
1. Every cell is quoted, and a quote in it is doubled (RFC 4180). Lines end with CR LF.
2. A cell that a spreadsheet would run as a formula gets an apostrophe in front (runtime/spreadsheet_formula.py).
"""

from typing import Final

from echo2.coordinator.rails import account_text, minor_units
from echo2.coordinator.rails.file_rail import FileFormat, PaymentBatch
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.runtime.spreadsheet_formula import is_formula


def cell(text: str) -> str:
    """Return a quoted cell (rules 1 and 2)."""
    return '"' + ("'" if is_formula(text) else "") + text.replace('"', '""') + '"'


def csv_format(currency: str) -> FileFormat:
    def render(batch: PaymentBatch) -> bytes:
        rows = [["key", "account", "amount", "currency"]]
        rows += [[row.key, row.account, minor_units.decimal(row.amount), currency] for row in batch.rows]
        return "".join(",".join(map(cell, row)) + "\r\n" for row in rows).encode()

    return FileFormat("csv", render, account_text.check)


CSV_RAIL: Final = RailKind(file_format=lambda settings: csv_format(settings.currency))
