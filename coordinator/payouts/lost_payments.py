"""Payments that files of the run folder tell of, and that a restored ledger lacks; putting those of a plan back.

Rules
1. `answers.jsonl` names the key of each payment about which a provider answered, and the journals of rails of files
   name each payment that is in a file. It is none of them where the last of the answers `TAKEN_ANSWERS` says that the
   money came back, or where there is none of these, and each call was refused or not taken. A provider that does not
   know a payment tells nothing: it may have forgotten it, or have been told to pay it since.
2. Each payment of a plan of the run may have gone out too, if enough keys approved the plan (payout_checks.py, rule 8)
   and the ledger lacks its entry, or if others of the plan were put back. The Root beside the plan counts here as well,
   and so does an approval or a Root that cannot be read.
3. Node and amount follow from the plans' files that are there. A file or a line that cannot be read tells nothing here.
4. These files can lack a payment as well: they replace no look at the provider's statement.
5. Each payment of a plan that the ledger lacks is put back as one that may have gone out, under its own key, with the
   plan's amount and account. The rail then says what became of it; it is never sent again.
6. One that the ledger has changes nothing. One that its node's balance does not cover waits, and moves nothing.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.payouts import payout_checks, plan_files
from echo2.coordinator.payouts.answer_record import recorded_answers
from echo2.coordinator.payouts.payout_plan import PlannedPayment
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.rails import file_rail, registry
from echo2.ledger.payout_facts import PayoutRestored, Payouts, payable
from echo2.p2p.errors import PeerFault
from echo2.protocol.authority import Root
from echo2.runtime.errors import LocalFault

TAKEN_ANSWERS: Final = ("taken", "done", "returned")
"""Answers about a payment that the provider took."""


class LostPayment(NamedTuple):
    """A payment that the ledger lacks. `key`: its idempotency key. `node`: empty: not known. `amount`: 10^-9 of the
    currency; 0: not known."""

    key: str
    node: str = ""
    amount: int = 0


class PutBack(NamedTuple):
    """The payments of a plan by what becomes of them (rules 5 and 6). `facts`: facts of those that are put back.
    `known`: those that the ledger has. `others`: the ledger has another payment under their key. `short`: those that
    the balance of their node does not cover, with that balance, 10^-9 of the currency."""

    facts: list[PayoutRestored]
    known: list[PlannedPayment]
    others: list[PlannedPayment]
    short: list[tuple[PlannedPayment, int]]


def to_put_back(plan: PlanFile, payouts: Payouts, balances: Mapping[str, int], provider: bytes) -> PutBack:
    """Return what of a plan is to be put back. `balances`: balances of all accounts. `provider`: 16 bytes that name the
    provider over which the plan was sent."""
    back, file = PutBack([], [], [], []), plan.entry_facts().file
    for one in plan.payments:
        there, owed = payouts.payments.get(one.payment), balances.get(payable(one.node), 0)
        if there is not None:
            same = (there.sent.node, there.sent.amount) == (one.node, one.amount)
            (back.known if same else back.others).append(one)
        elif owed < one.amount:
            back.short.append((one, owed))
        else:
            fact = PayoutRestored(
                payment=one.payment, plan=plan.plan, node=one.node, rail=plan.rail, provider=provider,
                account=one.account, amount=one.amount, file=file,
            )  # fmt: skip
            back.facts.append(fact)
    return back


def find_lost_payments(folder: Path, payouts: Payouts, chain: Sequence[Root]) -> list[LostPayment]:
    """Return the payments that the ledger lacks (rules 1 to 3), by key. `folder`: `payouts/`. `chain`: the run's Roots.
    Raises `LocalFault`."""
    words = defaultdict[str, list[str]](list)
    for name in registry.FILES:
        for row in file_rail.rows(folder / name):
            words[row.key].append("taken")
    for one in recorded_answers(folder):
        words[one.key].append(one.word)
    back = {key for key, said in words.items() if _none_gone(said)}
    keys = words.keys() - back
    planned, begun = dict[str, LostPayment](), payouts.restored_files()
    for path, plan in _plans(folder):
        ours = {key: LostPayment(key, one.node, one.amount) for one in plan.payments if (key := one.payment.hex())}
        file = plan.entry_facts().file
        if file in begun or (file not in payouts.files and _is_approved(path, plan, chain)):
            keys |= ours.keys() - back
        planned |= ours
    keys -= {one.hex() for one in payouts.payments}
    return [planned.get(key, LostPayment(key)) for key in sorted(keys)]


def _none_gone(words: Sequence[str]) -> bool:
    """Tell whether no money of a payment is gone, by all answers about it in order (rule 1)."""
    took = [word for word in words if word in TAKEN_ANSWERS]
    return took[-1] == "returned" if took else "refused" in words and "unknown" not in words


def _is_approved(path: Path, plan: PlanFile, chain: Sequence[Root]) -> bool:
    """Tell whether a plan may have been sent (rule 2). `path`: its folder."""
    if plan.run != chain[-1].run:
        return False
    try:
        approval = plan_files.read_approval(path)
        if approval is None:
            return False
        return payout_checks.is_approved(plan, approval, [*chain, plan_files.read_root(path, plan)])
    except (LocalFault, PeerFault):
        return True


def _plans(folder: Path) -> Iterator[tuple[Path, PlanFile]]:
    """Yield the folders of plans with what each plans (rule 3)."""
    for path in sorted(folder.glob("*/plan")):
        with contextlib.suppress(LocalFault):
            yield path.parent, plan_files.read_plan(path.parent)
