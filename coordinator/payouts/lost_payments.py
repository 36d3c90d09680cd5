"""Payments that files of the run folder tell of, and that a restored ledger lacks.

Rules
1. `answers.jsonl` names the key of each payment about which a provider answered, and the journals of rails of files
   name each payment that is in a file. One whose last answer says that no money is gone (`NONE_GONE`) is none of them.
2. Node and amount follow from the plans' files that are there. A file or a line that cannot be read tells nothing here.
3. These files can lack a payment as well: they replace no look at the provider's statement.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from coordinator.payouts import plan_files
from coordinator.payouts.answer_record import recorded
from coordinator.rails import file_rail, registry
from runtime.errors import LocalFault

NONE_GONE: Final = ("refused", "absent", "returned")


class LostPayment(NamedTuple):
    """A payment that the ledger lacks. `key`: its idempotency key. `node`: empty: not known. `amount`: 10^-9 of the
    currency; 0: not known."""

    key: str
    node: str = ""
    amount: int = 0


def lost(folder: Path, known: Collection[bytes]) -> list[LostPayment]:
    """Return the payments that the ledger lacks (rules 1 and 2), by key. `folder`: `payouts/`. `known`: the ids that it
    has. Raises `LocalFault`."""
    words = dict.fromkeys((row.key for name in registry.FILES for row in file_rail.rows(folder / name)), "taken")
    words |= {one.key: one.word for one in recorded(folder)}
    keys = {key for key, word in words.items() if word not in NONE_GONE} - {one.hex() for one in known}
    planned = _planned(folder)
    return [planned.get(key, LostPayment(key)) for key in sorted(keys)]


def _planned(folder: Path) -> dict[str, LostPayment]:
    payments = dict[str, LostPayment]()
    for path in folder.glob("*/plan"):
        try:
            plan = plan_files.read_plan(path.parent)
        except LocalFault:
            continue
        payments |= {one.payment.hex(): LostPayment(one.payment.hex(), one.node, one.amount) for one in plan.payments}
    return payments
