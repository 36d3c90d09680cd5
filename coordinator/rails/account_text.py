"""Accounts as people write them: one line of text, refused where it could do harm in a file or in a table.

Rules
1. An account is one line of 1 to `MOST` printable characters, without a blank at either end.
2. It begins as no formula does: spreadsheets run cells that begin with `=`, `+`, `-` or `@`.
"""

import re
from typing import Final

from coordinator.rails.rail import BadAccount
from runtime.printable import printable

MOST: Final = 200
"""Characters of an account."""
FORMULA: Final = ("=", "+", "-", "@")
_IBAN: Final = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
_NAME: Final = re.compile(r"[A-Za-z0-9/?:().,'+\- ]{1,70}")
"""The characters that every bank of SEPA takes."""


def check(account: str) -> None:
    """Check an account by rules 1 and 2. Raises `BadAccount`."""
    if not account:
        raise BadAccount("the account is empty")
    if len(account) > MOST:
        raise BadAccount(f"the account has {len(account)} characters, more than {MOST}: {printable(account[:20])}...")
    if not account.isprintable():
        raise BadAccount(f"the account has characters that cannot be printed, such as new lines: {printable(account)}")
    if account != account.strip():
        raise BadAccount(f"the account begins or ends with a blank: {account!r}")
    if account.startswith(FORMULA):
        raise BadAccount(f"the account begins as a formula does, with {account[0]}: {account}")


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
