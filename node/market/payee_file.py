"""The accounts that this node named for its pay, with their salts, in a file of this user alone.

Rules
1. An account is stored before it is sent, and its salt once the run has told it: only with both can the owner show that
   a commitment in the public ledger is to this account.
2. The file has mode 0600 from its first byte on, and is whole or absent.
3. Which account is in force, and from when on another one is, follows from the run's answer and the commitments here.
   One that does not stand here was named elsewhere: that is said.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from echo2.node.errors import BadConfig, TryLater
from echo2.protocol.market import PayeeResponse
from echo2.protocol.money_text import amount_text
from echo2.protocol.payee_accounts import account_hash
from echo2.runtime.files import hidden_path, move
from echo2.runtime.surroundings import sentence_of
from echo2.runtime.units import minute

FILE: Final = "payee.json"
"""Of the folder of a run."""
KEPT_ACCOUNTS: Final = 32
"""Accounts that stay, the newest ones."""


class NamedAccount(msgspec.Struct, frozen=True):
    """An account that the run has taken. `salt`: hexadecimal."""

    account: str
    salt: str

    @property
    def hash(self) -> bytes:
        """The commitment to it."""
        return account_hash(self.account, bytes.fromhex(self.salt))


class PayeeRecord(msgspec.Struct, frozen=True):
    """The content of the file. `wanted`: an account that the run has not taken yet. `refused`: why; empty: it was not
    asked yet. `told`: the run's newest answer, at `at` ms."""

    named: list[NamedAccount] = []
    wanted: str | None = None
    told: PayeeResponse | None = None
    at: int = 0
    refused: str = ""

    def wants(self, account: str | None, refused: str = "") -> "PayeeRecord":
        """Return the record with an account that waits, or with none."""
        return PayeeRecord(self.named, account, self.told, self.at, refused)

    def account_of(self, hash_: bytes | None) -> str:
        """Return the account of a commitment in words (rule 3)."""
        if hash_ is None:
            return "no account"
        for one in self.named:
            if one.hash == hash_:
                return one.account
        return f"an account that this home did not name (commitment {hash_.hex()[:16]})"

    def foreign(self) -> str:
        """Return a sentence about an account in the run that was named elsewhere; empty: none is known there."""
        told = self.told
        if told is None:
            return ""
        own = {None, *(one.hash for one in self.named)}
        if told.coming not in own:
            return (
                f"the pay of this node goes from {minute(told.since or 0)} on to {self.account_of(told.coming)}: "
                "somebody else has its key, unless you named it in another home; name yours by `echo2-node payout set`"
            )
        if told.commitment not in own:
            return f"the pay of this node goes to {self.account_of(told.commitment)}"
        return ""

    def after_answer(self, account: str | None, told: PayeeResponse, at: int) -> "PayeeRecord":
        """Return the record after an answer. `account`: that the request named. Raises `BadConfig` where the run's
        commitments are to no such account."""
        named = self.named
        if account is not None:
            one = NamedAccount(account, told.salt.hex())
            if one.hash not in (told.coming, told.commitment):
                raise BadConfig("the run took another account than the one that was sent: ask its operator")
            named = [*(other for other in named if other != one), one][-KEPT_ACCOUNTS:]
        if account is not None:
            return PayeeRecord(named, None, told, at)
        return PayeeRecord(named, self.wanted, told, at, self.refused)

    def lines(self) -> list[str]:
        """Return what is in force, what follows, and what the run says of payments, for people."""
        waiting = [] if self.wanted is None else [f"{self.wanted} waits until the node has told it to the run"]
        if self.refused:
            waiting = [f"{self.wanted} is not taken yet: {self.refused} The node tries again every hour"]
        if self.told is None:
            return waiting or ["no account was named, and the run has not been asked yet"]
        told = self.told
        rows = [f"in force: {self.account_of(told.commitment)}"]
        if told.coming is not None and told.since is not None:
            rows.append(
                f"from {minute(told.since)} on: {self.account_of(told.coming)}; until then the one in force is paid"
            )
        return [*rows, *waiting, *moving(told), payments(told)]


def moving(told: PayeeResponse) -> list[str]:
    """Return what becomes of the balances of keys that this one replaced."""
    return [
        f"{amount_text(one.amount, told.currency)} of the key before, {one.node}, "
        + ("stay with it: its replacement is disputed" if one.disputed else f"move here at {minute(one.at)}")
        for one in told.moving
    ]


def payments(told: PayeeResponse) -> str:
    """Return how the run pays."""
    least = "not told" if told.minimum is None else amount_text(told.minimum, told.currency)
    fee = "not told" if told.fee is None else amount_text(told.fee, told.currency)
    return f"payments by {told.rail}; least payment {least}, fee of the payee {fee}"


def read(folder: Path) -> PayeeRecord:
    """Return the content of the file in the folder of a run; an empty one if there is none. Raises `BadConfig`."""
    path = folder / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=PayeeRecord)
    except FileNotFoundError:
        return PayeeRecord()
    except (OSError, msgspec.MsgspecError) as error:
        raise BadConfig(f"{path} cannot be read ({error}): move it away, and name the account again") from error


def write(folder: Path, record: PayeeRecord) -> None:
    """Write the file (rule 2). Raises `TryLater`."""
    path = folder / FILE
    draft = hidden_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        move(draft, path)
    except OSError as error:
        refused = f"the disk refuses {path} ({error.strerror}): free space there, or check it"
        raise TryLater(sentence_of(error, refused)) from error
