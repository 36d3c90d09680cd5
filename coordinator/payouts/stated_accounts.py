"""The payout accounts that nodes stated, signed, in `payouts/stated.json` of the run folder, mode 0600.

Rules
1. An account is in force `ACCOUNT_WAIT_MS` after it was stated: who stole a key cannot move pay at once, and its owner
   sees the change.
2. A node has at most one account in force and one that follows. A new one replaces the one that follows.
3. Of a key that was replaced the account counts that was in force then. One that was to follow never does.
4. The file is durable before the entry `account.set`, which has the commitment alone. An account without its entry
   counts for nothing: it was never confirmed to its node.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from echo2.ledger.payout_facts import commitment
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing
from echo2.runtime.units import DAY

ACCOUNT_WAIT_MS: Final = DAY
STATED_FILE: Final = "stated.json"
SALT: Final = 32
"""Bytes of a salt."""
RULES: Final = 1


class AccountSet(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `account.set`. `account`: the commitment. `since`: when it is in force, ms."""

    rules: int = RULES
    node: str
    account: bytes
    since: int


class StatedAccount(msgspec.Struct, frozen=True):
    """An account of a node. `salt`: hexadecimal digits. `stated`, `since`: when it was stated, and is in force, ms."""

    account: str
    salt: str
    stated: int
    since: int

    @property
    def commitment(self) -> bytes:
        """The ledger's sentence on it."""
        return commitment(self.account, bytes.fromhex(self.salt))


_file = msgspec.json.Decoder(dict[str, list[StatedAccount]])


class StatedAccounts:
    """The accounts that the nodes of a run stated. `folder`: `payouts/` of the run folder. Raises `LocalFault` for a
    file that is damaged, or that others may read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATED_FILE
        self._rows = self._read()

    def _read(self) -> dict[str, list[StatedAccount]]:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise LocalFault(f"others may read {self._path}, which names accounts: `chmod 600` it")
                return _file.decode(file.read())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LocalFault(f"cannot read {self._path}: {error.strerror}") from error
        except (msgspec.MsgspecError, ValueError) as error:
            raise LocalFault(f"{self._path} cannot be read: {error}: put it back from your backup") from error

    def of(self, node: str, now: int) -> tuple[StatedAccount | None, StatedAccount | None]:
        """Return the account in force, and the one that follows. `node`: peer id."""
        rows = self._rows.get(node, [])
        past = [one for one in rows if one.since <= now]
        return (past[-1] if past else None), next((one for one in rows if one.since > now), None)

    def in_force(self, now: int, replaced: Mapping[str, int] = MappingProxyType({})) -> dict[str, StatedAccount]:
        """Return the account in force of each node that has one. `replaced`: node -> when its key was, ms (rule 3)."""
        known = {node: self.of(node, min(now, replaced.get(node, now)))[0] for node in self._rows}
        return {node: one for node, one in known.items() if one is not None}

    def coming(self, now: int) -> dict[str, int]:
        """Return, of each node whose first account is not in force yet, when it will be, ms."""
        both = {node: self.of(node, now) for node in self._rows}
        return {node: one.since for node, (before, one) in both.items() if before is None and one is not None}

    def state(self, node: str, account: str, salt: bytes, now: int) -> StatedAccount:
        """Write an account that a node states; return it. Raises `LocalFault`."""
        one = StatedAccount(account, salt.hex(), now, now + ACCOUNT_WAIT_MS)
        before, _ = self.of(node, now)
        rows = {**self._rows, node: [*([before] if before else []), one]}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with writing(self._path, 0o600) as file:
                file.write(msgspec.json.encode(rows))
        except OSError as error:
            raise LocalFault(f"cannot write {self._path}: {error.strerror}") from error
        self._rows = rows
        return one
