"""An account that a node is paid to, as text: one line that can do no harm in a file or in a table. Pure.

Rules
1. An account is one line of 1 to `MOST_ACCOUNT_CHARACTERS` printable characters, without a blank at either end.
2. It begins as no formula does: spreadsheets run cells that begin with `=`, `+`, `-` or `@`.
3. It is named in public by the hash of a salt and its text alone (`account_hash`).
"""

import hashlib
from typing import Final

from echo2.runtime.printable import printable

MOST_ACCOUNT_CHARACTERS: Final = 200
"""Characters of an account."""
FORMULA: Final = ("=", "+", "-", "@")


def account_fault(account: str) -> str:
    """Return why a text is no account (rules 1 and 2), as part of a sentence; empty: it is one."""
    if not account:
        return "the account is empty"
    if len(account) > MOST_ACCOUNT_CHARACTERS:
        beginning = printable(account[:20])
        return f"the account has {len(account)} characters, more than {MOST_ACCOUNT_CHARACTERS}: {beginning}..."
    if not account.isprintable():
        return f"the account has characters that cannot be printed, such as new lines: {printable(account)}"
    if account != account.strip():
        return f"the account begins or ends with a blank: {account!r}"
    if account.startswith(FORMULA):
        return f"the account begins as a formula does, with {account[0]}: {account}"
    return ""


def account_hash(account: str, salt: bytes) -> bytes:
    """Return the commitment to an account (rule 3)."""
    return hashlib.sha256(salt + account.encode()).digest()
