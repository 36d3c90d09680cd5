"""The rails by name (`payout.rail`): each opened from the settings, and its terms.

Rules
1. A payment belongs to the provider that it was sent over: `provider_of` names it, and no other is asked about it.
2. Rails of files keep their own record of keys, so a key may be sent again at any time. Other rails recognise it for
   payout.resend_hours.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from echo2.coordinator.rails import account_text, file_rail, https_rail
from echo2.coordinator.rails.bank_file import Debtor, bank_format
from echo2.coordinator.rails.command_rail import CommandRail
from echo2.coordinator.rails.csv_file import csv_format
from echo2.coordinator.rails.file_rail import FileFormat, FileRail
from echo2.coordinator.rails.https_rail import HttpsRail, connect_provider
from echo2.coordinator.rails.payment_states import PaymentTerms
from echo2.coordinator.rails.points_rail import PointsRail
from echo2.coordinator.rails.rail import Rail
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.units import DAY

HOUR: Final = 3600 * 1000
"""Milliseconds in an hour."""
FILES: Final = ("csv", "bank")


def terms_of(settings: PayoutSection) -> PaymentTerms:
    """Return the terms of the rail that the settings name (rule 2)."""
    patience = settings.question_days * DAY
    return PaymentTerms(1 << 62 if settings.rail in FILES else settings.resend_hours * HOUR, patience)


def provider_of(settings: PayoutSection) -> bytes:
    """Return 16 bytes that name the provider (rule 1)."""
    target = {"https": settings.url.rstrip("/"), "command": settings.command, "bank": settings.debtor_iban}
    text = f"echo2/provider/{settings.rail}/{settings.currency}/{target.get(settings.rail, '')}"
    return hashlib.sha256(text.encode()).digest()[:16]


def account_check(settings: PayoutSection) -> Callable[[str], None]:
    """Return the check of accounts of the rail that the settings name; it raises `BadAccount`."""
    return account_text.check_bank if settings.rail == "bank" else account_text.check


@asynccontextmanager
async def open_rail(settings: PayoutSection, folder: Path, clock: Callable[[], int]) -> AsyncIterator[Rail]:
    """Yield the rail that the settings name. `folder`: folder for the files of rails that write some. `clock`: ms.
    Raises `LocalFault` for settings that do not suffice."""
    match settings.rail:
        case "points":
            yield PointsRail()
        case "command":
            yield CommandRail(settings.command, settings.currency)
        case "https":
            async with connect_provider(settings.url, Path(settings.credentials)) as exchange:
                yield HttpsRail(exchange, settings.currency)
        case "csv" | "bank":
            rail = FileRail(folder / settings.rail, _file_format(settings), clock)
            try:
                yield rail
            finally:
                rail.close()


def check_rail(settings: PayoutSection, folder: Path) -> None:
    """Check what `open_rail` reads, as the outcomes that a person wrote, the program or the credentials; write nothing,
    and ask no provider. Arguments as of `open_rail`. Raises `LocalFault`."""
    match settings.rail:
        case "command":
            CommandRail(settings.command, settings.currency)
        case "https":
            https_rail.base_of(settings.url)
            https_rail.read_token(Path(settings.credentials))
        case "csv" | "bank":
            _file_format(settings)
            file_rail.check_files(folder / settings.rail)


def stated_outcomes(settings: PayoutSection, folder: Path) -> tuple[Path, Collection[str]]:
    """Return the file of outcomes that a person writes, and the keys that it names; none by a rail of no files.
    `folder`: the same as in `open_rail`. Raises `LocalFault`."""
    path = folder / settings.rail / file_rail.RESULTS
    return path, file_rail.read_results(path) if settings.rail in FILES else ()


def written_files(settings: PayoutSection, folder: Path) -> set[Path]:
    """Return the files of payments that a rail of files has written; none by another. `folder`: the same as in
    `open_rail`."""
    return set((folder / settings.rail).glob("payments-*")) if settings.rail in FILES else set()


def _file_format(settings: PayoutSection) -> FileFormat:
    if settings.rail == "csv":
        return csv_format(settings.currency)
    return bank_format(Debtor(settings.debtor_name, settings.debtor_iban, settings.debtor_bic), settings.currency)
