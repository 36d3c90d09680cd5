"""Tell the settings `payout` and the files that each rail needs, and those that this machine lacks.

Rules
1. `check` reads settings alone: it refuses a run that could never pay, before it is made or started.
2. `fault_here` also looks at the files that they name. A file that lacks stops no run: payments wait.
"""

from pathlib import Path

from echo2.coordinator.rails import account_text, https_rail
from echo2.coordinator.rails.bank_file import Debtor, bank_format
from echo2.coordinator.rails.command_rail import CommandRail
from echo2.coordinator.rails.rail import BadAccount
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault


def check(settings: PayoutSection) -> None:
    """Check that the settings have what their rail needs (rule 1). Raises `SettingsFault`."""
    try:
        _check(settings)
    except SettingsFault:
        raise
    except LocalFault as error:
        raise SettingsFault(f"payout.rail is {settings.rail}: {error}") from error


def fault_here(settings: PayoutSection) -> str:
    """Return what this machine lacks for payments by the rail of the settings; empty: nothing (rule 2)."""
    try:
        check(settings)
        if settings.rail == "https":
            https_rail.read_token(Path(settings.credentials))
        elif settings.rail == "command":
            CommandRail(settings.command, settings.currency)
    except LocalFault as error:
        return str(error)
    return ""


def _check(settings: PayoutSection) -> None:
    if settings.rail == "https":
        _needs(settings, url="the provider's address, as in https://payouts.example/v1",
               credentials="the path of a file of mode 0600 with its bearer token")  # fmt: skip
        https_rail.base_of(settings.url)
    elif settings.rail == "command":
        _needs(settings, command="the absolute path of your program")
        if not Path(settings.command).is_absolute():
            raise SettingsFault(f"payout.command {settings.command!r} is no absolute path")
    elif settings.rail == "bank":
        _needs(settings, debtor_name="the holder of the paying account", debtor_iban="its IBAN, without blanks")
        try:
            account_text.split_bank(f"{settings.debtor_iban} {settings.debtor_name}")
        except BadAccount as error:
            raise SettingsFault(f"payout.debtor_iban and payout.debtor_name: {error}") from error
        bank_format(Debtor(settings.debtor_name, settings.debtor_iban, settings.debtor_bic), settings.currency)


def _needs(settings: PayoutSection, **needed: str) -> None:
    lacks = [f"payout.{key}, {meaning}" for key, meaning in needed.items() if not getattr(settings, key)]
    if lacks:
        raise SettingsFault(f"payout.rail is {settings.rail}, which needs {'; and '.join(lacks)}")
