"""The rails by name (`payout.rail`): what each needs, its terms, and each opened from the settings.

Rules
1. A payment belongs to the provider that it was sent over: `provider_of` names it, and no other is asked about it.
2. Rails of files keep their own record of keys, so a key may be sent again at any time. Other rails recognise it for
   payout.resend_hours.
3. `check` reads settings alone: it refuses a run that could never pay, before it is made or started. `fault_here` also
   looks at the files that they name. A file that lacks stops no run: payments wait.
4. A rail whose plug-in is not installed, or is broken, is refused by a sentence that says how to install it; so is one
   that two packages claim. None replaces a rail of this build.
"""

import hashlib
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from echo2.coordinator.rails import file_rail
from echo2.coordinator.rails.command_rail import COMMAND_RAIL
from echo2.coordinator.rails.csv_file import CSV_RAIL
from echo2.coordinator.rails.file_rail import FileRail
from echo2.coordinator.rails.payment_states import PaymentTerms
from echo2.coordinator.rails.points_rail import POINTS_RAIL
from echo2.coordinator.rails.rail import Rail
from echo2.coordinator.rails.rail_kind import GROUP, RailKind
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from echo2.runtime.units import DAY

HOUR: Final = 3600 * 1000
"""Milliseconds in an hour."""
QUESTION_DAYS: Final = 7
"""Days after which a payment without a final answer needs the operator's decision."""
FILES: Final = ("csv", "bank")
_OWN_RAILS: Final = {"points": POINTS_RAIL, "csv": CSV_RAIL, "command": COMMAND_RAIL}


def kind_of(name: str) -> RailKind:
    """Return the kind of rail that a value of payout.rail names. Raises `SettingsFault` (rule 4)."""
    if name in _OWN_RAILS:
        return _OWN_RAILS[name]
    install = f"in a clone of echo2 run `{sys.executable} -m pip install --no-deps ./plugins/echo2-rails`"
    points = list(entry_points(group=GROUP, name=name))
    if len({point.value for point in points}) > 1:
        owners = " and ".join(sorted(point.dist.name if point.dist else point.value for point in points))
        raise SettingsFault(f"payout.rail is {name}, and {owners} each have a rail of this name: remove one")
    for point in points:
        try:
            kind = point.load()
        except Exception as error:  # a plug-in's own, of any kind
            why = str(error) or type(error).__name__
            raise SettingsFault(
                f"payout.rail is {name}, whose plug-in cannot be imported ({why}): {install}"
            ) from error
        if not isinstance(kind, RailKind):
            raise SettingsFault(f"payout.rail is {name}, whose plug-in gives no rail: {install}")
        return kind
    raise SettingsFault(
        f"payout.rail is {name}, which needs the plug-in echo2-rails: {install}, or set payout.rail to csv or command"
    )


def terms_of(settings: PayoutSection) -> PaymentTerms:
    """Return the terms of the rail that the settings name (rule 2)."""
    return PaymentTerms(1 << 62 if settings.rail in FILES else settings.resend_hours * HOUR, QUESTION_DAYS * DAY)


def provider_of(settings: PayoutSection) -> bytes:
    """Return 16 bytes that name the provider (rule 1). Raises `SettingsFault`."""
    text = f"echo2/provider/{settings.rail}/{settings.currency}/{kind_of(settings.rail).target(settings)}"
    return hashlib.sha256(text.encode()).digest()[:16]


def account_check(settings: PayoutSection) -> Callable[[str], None]:
    """Return the check of accounts of the rail that the settings name; it raises `BadAccount`. Raises
    `SettingsFault`."""
    return kind_of(settings.rail).check_account


@asynccontextmanager
async def open_rail(settings: PayoutSection, folder: Path, clock: Callable[[], int]) -> AsyncIterator[Rail]:
    """Yield the rail that the settings name. `folder`: folder for the files of rails that write some. `clock`: ms.
    Raises `LocalFault` for settings that do not suffice."""
    kind = kind_of(settings.rail)
    if kind.file_format is not None:
        rail = FileRail(folder / settings.rail, kind.file_format(settings), clock)
        try:
            yield rail
        finally:
            rail.close()
    elif kind.connect is not None:
        async with kind.connect(settings) as connected:
            yield connected


def check(settings: PayoutSection) -> None:
    """Check that the settings have what their rail needs (rule 3). Raises `SettingsFault`."""
    kind = kind_of(settings.rail)
    lacks = [f"payout.{key}, {meaning}" for key, meaning in kind.needs.items() if not getattr(settings, key)]
    if lacks:
        raise SettingsFault(f"payout.rail is {settings.rail}, which needs {'; and '.join(lacks)}")
    try:
        kind.check(settings)
    except LocalFault as error:
        raise SettingsFault(f"payout.rail is {settings.rail}: {error}") from error


def fault_here(settings: PayoutSection) -> str:
    """Return what this machine lacks for payments by the rail of the settings; empty: nothing (rule 3)."""
    try:
        check(settings)
        kind_of(settings.rail).check_here(settings)
    except LocalFault as error:
        return str(error)
    return ""


def check_rail(settings: PayoutSection, folder: Path) -> None:
    """Check what `open_rail` reads, as the outcomes that a person wrote, the program or the credentials; write nothing,
    and ask no provider. Arguments as of `open_rail`. Raises `LocalFault`."""
    kind = kind_of(settings.rail)
    kind.check(settings)
    kind.check_here(settings)
    if settings.rail in FILES:
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
