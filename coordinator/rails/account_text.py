"""Accounts as people write them, refused where a rail cannot pay to them."""

import re
from typing import Final

from echo2.coordinator.rails.rail import BadAccount
from echo2.protocol.payee_accounts import account_fault
from echo2.runtime.printable import printable

_IBAN: Final = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
_NAME: Final = re.compile(r"[A-Za-z0-9/?:().,'+\- ]{1,70}")
"""The characters that every bank of SEPA takes."""


def check(account: str) -> None:
    """Check an account as any rail takes it (protocol/payee_accounts.py). Raises `BadAccount`."""
    if fault := account_fault(account):
        raise BadAccount(fault)


def check_bank(account: str) -> None:
    """Check an account of the bank rail, an IBAN and a name. Raises `BadAccount`."""
    check(account)
    split_bank(account)


def split_bank(account: str) -> tuple[str, str]:
    """Return IBAN and name of "IBAN NAME". Raises `BadAccount`."""
    number, _, name = account.partition(" ")
    if not is_iban(number):
        raise BadAccount(f"{printable(number)} is no IBAN, written without blanks, or has a wrong check digit")
    if not _NAME.fullmatch(name) or not name.strip():
        raise BadAccount(
            "after the IBAN and a blank comes the holder's name: 1 to 70 of A-Z a-z 0-9 / - ? : ( ) . , ' +"
        )
    return number, name.strip()


def is_iban(text: str) -> bool:
    """Tell whether a text is an IBAN with the right check digits (ISO 13616, ISO 7064 mod 97-10)."""
    if not _IBAN.fullmatch(text):
        return False
    return int("".join(str(int(letter, 36)) for letter in text[4:] + text[:4])) % 97 == 1
