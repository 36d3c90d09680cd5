"""Payments made, payments open, and each question that a person must answer, as lines of text. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from echo2.coordinator.payouts.lost_payments import LostPayment, PutBack
from echo2.coordinator.payouts.payout_plan import ChosenPayments, LeftOut, NodeBalances
from echo2.coordinator.payouts.payout_sender import Passed
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.rails import minor_units
from echo2.coordinator.rails.file_rail import RESULTS
from echo2.coordinator.rails.payment_states import QUESTIONS
from echo2.coordinator.rails.registry import FILES
from echo2.ledger.balance_waits import BalanceWait
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, PlanSums, SentPayment
from echo2.protocol.money_text import amount_text
from echo2.runtime.figures import number_of
from echo2.runtime.printable import printable
from echo2.runtime.units import DAY, minute

SHOWN_PAYMENTS = 20
"""Payments or nodes that are listed one by one."""
HASH_LINE = "file        SHA-256 "


def money(amount: int) -> str:
    """Return an amount of the ledger as text, in the currency, rounded down to two decimals."""
    return minor_units.decimal(amount // UNITS_PER_HUNDREDTH)


def unpaid(chosen: ChosenPayments, owed: NodeBalances, currency: str) -> list[str]:
    """Return who is not paid, why, and how all that the run owes divides: exact amounts, whose sums agree. `owed`: owed
    to all nodes."""
    by_reason: dict[str, list[LeftOut]] = {}
    for one in chosen.left_out:
        by_reason.setdefault(printable(one.why), []).append(one)
    lines = list[str]()
    for why, nodes in sorted(by_reason.items())[:SHOWN_PAYMENTS]:
        total = amount_text(sum(one.amount for one in nodes), currency)
        lines.append(f"not paid    {number_of(len(nodes), 'node')}, {total}: {why}")
        lines += _largest({one.node: one.amount for one in nodes}, currency)
    if len(by_reason) > SHOWN_PAYMENTS:
        lines.append(f"not paid    for {number_of(len(by_reason) - SHOWN_PAYMENTS, 'other reason')} as well")
    planned = sum(one.amount for one in chosen.payments)
    left_out = sum(one.amount for one in chosen.left_out)
    later = owed.payable - planned - left_out - chosen.rest
    parts = [
        (planned, "planned"), (left_out, "of the nodes above"),
        (chosen.rest, "stays with nodes that are paid, as less than a hundredth or above payout.node_limit"),
        (later, "came after the LedgerHead"),
    ]  # fmt: skip
    divided = " + ".join(f"{amount_text(amount)} {what}" for amount, what in parts if amount or what == "planned")
    lines += [f"payable     {amount_text(owed.payable, currency)} = {divided}", *_held_back(owed, currency)]
    if owed.waiting:
        total = amount_text(sum(owed.waiting.values()), currency)
        lines.append(
            f"not yet     {number_of(len(owed.waiting), 'node')}, {total} of it: nothing of theirs is payable yet"
        )
    return [*lines, *_largest(owed.waiting, currency)]


def _largest(amounts: Mapping[str, int], currency: str) -> list[str]:
    """Return nodes with their amounts, the largest ones first, and the sum of those beyond `SHOWN_PAYMENTS`."""
    largest = sorted(amounts.items(), key=lambda one: (-one[1], one[0]))
    lines = [f"            {node} {amount_text(amount, currency)}" for node, amount in largest[:SHOWN_PAYMENTS]]
    if rest := largest[SHOWN_PAYMENTS:]:
        lines.append(f"            and {len(rest)} more, {amount_text(sum(amount for _, amount in rest), currency)}")
    return lines


def _held_back(owed: NodeBalances, currency: str) -> list[str]:
    return [
        f"not payable {amount_text(owed.accrued, currency)} held back and {amount_text(owed.unvested, currency)} not "
        "vested yet: released at the closes of epochs"
    ]


def unknown_payees(named: Iterable[str], balances: Mapping[str, int]) -> list[str]:
    """Return the names in the operator's file of accounts of which the ledger has no account, as those with a slip.
    `balances`: balances of all accounts."""
    known = {name.partition(":")[2].partition(":")[0] for name in balances}
    return [
        f"unknown     {printable(name[:80])} in payees.json is no node of the ledger: the line pays and withholds "
        "nothing"
        for name in sorted(set(named) - known)[:SHOWN_PAYMENTS]
    ]


def unknown_outcomes(path: Path, keys: Sequence[str]) -> list[str]:
    """Return the keys in a file of outcomes that no payment has."""
    return [
        f"unknown     {printable(key[:80])} in {path} is no payment in the ledger: nothing follows from its line"
        for key in keys[:SHOWN_PAYMENTS]
    ]


def describe_new_plan(
    plan: PlanFile, chosen: ChosenPayments, owed: NodeBalances, fee: int | None, *, do: bool
) -> list[str]:
    """Return the lines about a plan. `fee`: fee of its largest payment, minor units; None: no quote was asked for.
    `do`: it is written, not only shown: the accounts' salts, and so the file's hash, are others each time."""
    quoted = [] if fee is None else [f"fee         {minor_units.decimal(fee)} for the largest payment, on top"]
    shown = describe_plan(plan) if do else [row for row in describe_plan(plan) if not row.startswith(HASH_LINE)]
    return [*shown, *quoted, *unpaid(chosen, owed, plan.currency)]


def describe_replacement(newest: PlanSums | None, *, do: bool) -> list[str]:
    """Return what a further plan takes from the newest one in the ledger: no unsent payment of that can be sent any
    more. `do`: the further plan is written, not only shown."""
    if newest is None or newest.payments == newest.planned.payments:
        return []
    old = newest.planned
    unsent = number_of(old.payments - newest.payments, "unsent payment")
    lost = f"its {unsent}, together {money(old.total - newest.total)} {old.currency}"
    if do:
        return [f"replaced    plan {old.plan}: {lost}, can be sent no more, whoever approved it"]
    return [f"replaces    plan {old.plan}: with --yes {lost}, can be sent no more, whoever approved it"]


def describe_plan(plan: PlanFile, accounts: Mapping[bytes, str] | None = None) -> list[str]:
    """Return the lines that a person reads before approving a plan. `accounts`: accounts by payment; None: none is
    shown."""
    known = {payment: printable(account) for payment, account in (accounts or {}).items()}
    largest = sorted(plan.payments, key=lambda one: (-one.amount, one.node))[:5]
    return [
        f"plan        {plan.plan} of run {plan.run.hex()[:16]}, by the rail {plan.rail}",
        f"payments    {len(plan.payments)}, together {money(plan.total)} {plan.currency}",
        f"LedgerHead  {plan.head}, {plan.head_hash.hex()}",
        f"{HASH_LINE}{plan.entry_facts().file.hex()}",
        *(["UNWITNESSED no nodes have confirmed that the ledger is the newest"] if plan.unwitnessed else []),
        *(
            f"largest     {money(one.amount)} {plan.currency} to {one.node} {known.get(one.payment, '')}".rstrip()
            for one in largest
        ),
    ]


def describe_pass(outcome: Passed) -> list[str]:
    """Return the lines about a pass over payments."""
    lines = [
        f"sent        {number_of(outcome.sent, 'payment')} for the first time",
        f"final       {outcome.confirmed} confirmed, {outcome.returned} returned; "
        f"{outcome.open} without a final answer yet",
    ]
    lines += [f"held back   {number_of(count, 'payment')}: {why}" for why, count in outcome.limited.items()]
    if outcome.skipped:
        skipped = number_of(outcome.skipped, "payment")
        lines.append(f"not asked   {skipped} of another provider: set payout.* back to it for that")
    lines += [f"unclear     {word}" for word in outcome.words]
    lines += [
        f"decided     {one.key}: it stays {one.state}, as you answered, though the provider says otherwise again"
        f"{_where_to_correct(one)}"
        for one in outcome.repeated[:SHOWN_PAYMENTS]
    ]
    if outcome.questions:
        asked = number_of(len(outcome.questions), "payment")
        lines.append(f"QUESTIONS   about {asked}: `echo2-coord payout report` lists what you have to answer")
    return [*lines, f"ENDED       {outcome.ended}"] if outcome.ended else lines


def report(
    newest: PlanSums | None, payments: Iterable[SentPayment], owed: NodeBalances, currency: str, now: int
) -> list[str]:
    """Return the lines about all payments of a run. `owed`: amount owed to all nodes. `now`: ms."""
    every = list(payments)
    counts, sums = Counter[str](), Counter[str]()
    for one in every:
        counts[one.state] += 1
        sums[one.state] += one.sent.amount
    lines = [_newest(newest)]
    lines += [
        f"{label:<12}{number_of(counts[state], 'payment')}, {money(sums[state])} {currency}"
        for label, state in (("under way", "sent"), ("confirmed", "confirmed"), ("returned", "returned"))
    ]
    lines += [
        f"payable     {amount_text(owed.payable, currency)}, to {number_of(owed.nodes, 'node')}",
        *_held_back(owed, currency),
    ]
    asked = [one for one in every if one.question]
    lines += [
        f"QUESTION    {one.key}, {money(one.sent.amount)} {currency} to {one.sent.node}, {_age(one, now)}: "
        f"{QUESTIONS.get(one.question, one.question)}{_where_to_correct(one)}; "
        f"then `echo2-coord payout reconcile --settle {one.key}=confirmed --why TEXT --yes`, or =returned"
        for one in asked[:SHOWN_PAYMENTS]
    ]
    waiting = sorted((one for one in every if one.state == "sent" and not one.question), key=lambda one: one.at)
    lines += [
        f"open        {one.key}, {money(one.sent.amount)} {currency} to {one.sent.node}, {_age(one, now)}"
        for one in waiting[:SHOWN_PAYMENTS]
    ]
    hidden = max(0, len(asked) - SHOWN_PAYMENTS) + max(0, len(waiting) - SHOWN_PAYMENTS)
    return [*lines, f"and {hidden} more"] if hidden else lines


def _where_to_correct(payment: SentPayment) -> str:
    """Return what to do about a payment of a rail of files, whose answers are those of a file of the operator's."""
    if payment.sent.rail not in FILES or payment.question not in ("", "amount", "contradiction"):
        return ""
    return f" (your line in payouts/{payment.sent.rail}/{RESULTS} says so: correct it where it is wrong)"


def _newest(newest: PlanSums | None) -> str:
    if newest is None:
        return "plan        none yet"
    plan = newest.planned
    return (
        f"plan        {plan.plan}, by the rail {plan.rail}: "
        f"sent {newest.payments} of {number_of(plan.payments, 'payment')}, "
        f"{money(newest.total)} of {money(plan.total)} {plan.currency}"
        + (", and no more of it, as payments were put back after a restore" if newest.ended else "")
    )


def _age(payment: SentPayment, now: int) -> str:
    days = max(0, now - payment.at) / DAY
    return f"{'put back' if payment.restored else 'sent'} {days:.1f} days ago"


def describe_lost(payments: Sequence[LostPayment], currency: str) -> list[str]:
    """Return the payments that a restored ledger lacks, and what to do about them."""
    lines = [
        f"payment {one.key}"
        + (f", {money(one.amount)} {currency} to {one.node}," if one.node else "")
        + " may have gone out"
        for one in payments[:SHOWN_PAYMENTS]
    ]
    if not lines:
        return []
    more = [f"and {len(payments) - SHOWN_PAYMENTS} more"] if len(payments) > SHOWN_PAYMENTS else []
    return [
        "the run's files name payments that the ledger lacks, and each would be made a second time", *lines, *more,
        "put them back by `echo2-coord payout restored --plan FOLDER`, with the folder of their plan; while a balance "
        'does not cover one, withhold the pay of its node by an empty account in payees.json ({"12D3Koo...": ""}); of '
        "one that never arrived, name the key in --why",
    ]  # fmt: skip


def since_restored(since: int) -> list[str]:
    """Return what the operator has to compare after a restore, at a time in ms."""
    return [
        f"run.sqlite was restored on {minute(since)} from a copy, which lacks what came after it",
        "each payment in the provider's statement must be in the ledger (`echo2-coord ledger find KEY`): what another",
        "one paid still stands as payable, and would be paid a second time: put it back by",
        "`echo2-coord payout restored --plan FOLDER`, with the folder of its plan",
    ]


def put_back(plan: PlanFile, back: PutBack, waits: Mapping[str, BalanceWait], *, do: bool) -> list[str]:
    """Return the lines about payments that are put back into a restored ledger."""
    total = sum(one.amount for one in back.facts)
    count = number_of(len(back.facts), "payment")
    lines = [
        *describe_plan(plan), f"put back    {count}, together {money(total)} {plan.currency}: these count as sent then",
    ]  # fmt: skip
    if back.known:
        lines.append(f"there       {number_of(len(back.known), 'payment')}, which the ledger has already")
    lines += [
        f"LACKING     {one.payment.hex()}, {money(one.amount)} {plan.currency} to {one.node}: {amount_text(owed)} is "
        f"payable to it, so nothing of it is put back{_balance_move_text(waits.get(one.node))}"
        for one, owed in back.short[:SHOWN_PAYMENTS]
    ]
    lines += [f"LACKING     {len(back.short) - SHOWN_PAYMENTS} more"] if len(back.short) > SHOWN_PAYMENTS else []
    lines += [
        f"QUESTION    {one.payment.hex()}, {money(one.amount)} {plan.currency} to {one.node}: the ledger has another "
        "payment under this key, and this one is not put back: ask the provider which of both it made"
        for one in back.others[:SHOWN_PAYMENTS]
    ]
    if back.short:
        lines.append(
            "withhold the pay of the nodes that lack something, by an empty account in payees.json; once `payout "
            "reconcile` has brought something back, or more was released, run this again"
        )
    if not do:
        return [*lines, "nothing was written: --yes puts them back"]
    return [
        *lines,
        "next        `echo2-coord payout reconcile --yes` asks the provider that payout.* names what became of them, "
        "so it must be the one over which the plan was sent; none is sent again",
    ]


def _balance_move_text(wait: BalanceWait | None) -> str:
    if wait is None or wait.disputed:
        return ""
    return f"; its key was replaced, and its balance moves to {wait.successor}"
