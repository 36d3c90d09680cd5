"""Accounts of the rail bank: an IBAN, a blank and the holder's name."""

import re
from typing import Final

from echo2.coordinator.rails import account_text
from echo2.coordinator.rails.rail import BadAccount
from echo2.runtime.printable import printable

_IBAN: Final = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
_NAME: Final = re.compile(r"[A-Za-z0-9/?:().,'+\- ]{1,70}")
"""The characters that every bank of SEPA takes."""


def check(account: str) -> None:
    """Check an account of the bank rail, an IBAN and a name. Raises `BadAccount`."""
    account_text.check(account)
    split(account)


def split(account: str) -> tuple[str, str]:
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
