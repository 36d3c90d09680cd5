"""The reasons that forbid sending a plan, or putting its payments back, each as a sentence.

Rules
1. The whole ledger verifies: chain, tree and balances, and the plan's LedgerHead is that of its entries and signed.
2. No evidence of a fork is known: no head of another history that the ledger's key signed.
3. Unless the plan is unwitnessed: payments wait for no nodes (payment_witnesses.py), and the plan's head is published,
   as a node has told the running coordinator that it holds this head, or a later one.
4. The newest Root has the role `payout`, has not expired, and its threshold of keys signed this plan's file and head.
5. The plan is the newest one in the ledger, and its file is the one that the ledger names.
6. The rail of the settings is the plan's.

The reasons that forbid putting the payments of a plan back into a restored ledger:

7. The plan is of this run, each of its payments has the key that follows from it, and the rail is that of the settings.
8. Enough keys of the role `payout`, by any Root of the run, signed exactly this file. The Root may have changed since:
   the money is gone.
9. Its LedgerHead is one of the ledger, or comes after the part that all histories of the run share.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from echo2.coordinator.accounts import fork_evidence
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.payouts.payment_witnesses import Witnessed
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.run.keys import PAYOUT
from echo2.ledger.ledger_entries import Tampered
from echo2.ledger.payout_facts import Payouts, payment_id
from echo2.p2p.envelope import decode_unverified, signers
from echo2.p2p.errors import PeerFault
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, open_kept
from echo2.protocol.ledger_heads import LedgerHead

NO_ROLE: Final = (
    "the newest Root has no role `payout`, so nobody may let money go: make a key with `echo2-coord keys make-payout`, "
    "and a Root that names it with `keys export-root --payout KEY`"
)


def refusals(
    plan: PlanFile, approval: bytes | None, payouts: Payouts, database: Database, chain: Sequence[Root], rail: str,
    now: int, nodes: Witnessed,
) -> list[str]:  # fmt: skip
    """Return each reason not to send a plan; empty: it may be sent. `rail`: rail of the settings. `now`: ms."""
    own = [_of_plan(plan, payouts, chain[-1], rail), _of_approval(plan, approval, chain[-1], now)]
    return [why for why in (*own, *of_ledger(plan, database, chain), _of_nodes(plan, nodes)) if why]


def of_lost_plan(
    plan: PlanFile, approval: bytes | None, database: Database, chain: Sequence[Root], rail: str, shared: int | None
) -> list[str]:
    """Return each reason not to put a plan's payments back (rules 7 to 9). `rail`: rail of the settings. `shared`:
    number of the newest LedgerHead of all histories of the run; None: it is not known."""
    run = chain[-1].run
    if plan.run != run:
        return ["the plan belongs to another run"]
    reasons = [] if rail == plan.rail else [f"the plan is for the rail {plan.rail}, and payout.rail is {rail}"]
    if any(one.payment != payment_id(run, plan.plan, one.node) for one in plan.payments):
        reasons.append("a payment has another key than follows from run, plan and node")
    if not _has_head(plan, database) and shared is not None and plan.head <= shared:
        reasons.append(f"its LedgerHead {plan.head} is not the one of this run, which no restore replaced")
    try:
        signed = is_approved(plan, approval, chain)
    except PeerFault as error:
        return [*reasons, f"the approval does not verify: {error}"]
    why = (
        "no Root of the run has enough payout keys that approve exactly this file, and without that nothing of it was "
        "sent: name the whole folder as it was sent, such as an approver's copy"
    )
    return reasons if signed else [*reasons, why]


def is_approved(plan: PlanFile, approval: bytes | None, chain: Sequence[Root]) -> bool:
    """Tell whether enough payout keys of a Root of the run approve exactly this plan (rule 8). Raises `Malformed`."""
    return any(
        len(signed_by(plan, approval, root)) >= root.roles[PAYOUT].threshold for root in chain if PAYOUT in root.roles
    )


def _has_head(plan: PlanFile, database: Database) -> bool:
    sealed = database.value("SELECT sealed FROM ledger_heads WHERE number = ?", (plan.head,))
    return sealed is not None and hashlib.sha256(sealed).digest() == plan.head_hash


def of_ledger(plan: PlanFile, database: Database, chain: Sequence[Root]) -> list[str]:
    """Return what the ledger says against a plan (rules 1 and 2)."""
    evidence = fork_evidence.evidence(database)
    reasons = [f"evidence of a fork is known: {evidence}"] if evidence else []
    sealed = database.value("SELECT sealed FROM ledger_heads WHERE number = ?", (plan.head,))
    if sealed is None or not _has_head(plan, database):
        return [*reasons, f"the ledger has no LedgerHead {plan.head} as the plan names it: it was restored, or altered"]
    return [*reasons, *filter(None, [_fault(sealed, database, chain)])]


def _of_nodes(plan: PlanFile, nodes: Witnessed) -> str:
    """Return why nodes forbid a plan (rule 3); empty: they do not."""
    if plan.unwitnessed or (not nodes.wait and nodes.newest >= plan.head):
        return ""
    return nodes.wait or (
        f"no node has told the coordinator, since it started, that it holds LedgerHead {plan.head}, so it counts as "
        "not published: let the coordinator run until a node has fetched it (each asks once per minute)"
    )


def _fault(sealed: bytes, database: Database, chain: Sequence[Root]) -> str:
    """Return why the ledger does not verify up to its end, or not under a head (rule 1); empty: it does."""
    ledger = Ledger(database)
    try:
        head = decode(open_kept(sealed, "ledgerhead", chain), LedgerHead)
        tip = ledger.verify()
    except PeerFault as error:
        return f"the LedgerHead does not verify: {error}"
    except Tampered as error:
        return f"the ledger does not verify: {error}"
    last = ledger.entry(head.size)
    if tip.entries < head.size or ledger.tree.size < head.size or ledger.tree.root(head.size) != head.root:
        return f"the ledger is not the one of LedgerHead {head.number}"
    return "" if last is not None and last.hash == head.tip else f"LedgerHead {head.number} names another last entry"


def _of_plan(plan: PlanFile, payouts: Payouts, root: Root, rail: str) -> str:
    if plan.run != root.run:
        return "the plan belongs to another run"
    if payouts.plan is None or payouts.plan.planned != plan.entry_facts():
        newest = "no plan" if payouts.plan is None else f"plan {payouts.plan.planned.plan}"
        return f"the newest plan in the ledger is {newest}, and this file is not it"
    if payouts.plan.ended:
        return "payments were put back after a restore, and nothing of an earlier plan is sent since: plan again"
    return "" if rail == plan.rail else f"the plan is for the rail {plan.rail}, and payout.rail is {rail}"


def _of_approval(plan: PlanFile, approval: bytes | None, root: Root, now: int) -> str:
    role = root.roles.get(PAYOUT)
    if role is None:
        return NO_ROLE
    if root.expires <= now:
        return "the newest Root has expired: renew it with `echo2-coord keys renew`"
    try:
        good = signed_by(plan, approval, root)
    except PeerFault as error:
        return f"the approval does not verify: {error}"
    if len(good) < role.threshold:
        return (
            f"{len(good)} of {role.threshold} required payout keys approve plan {plan.plan}: `payout approve` adds one"
        )
    return ""


def signed_by(plan: PlanFile, approval: bytes | None, root: Root) -> set[bytes]:
    """Return the payout keys of a Root that signed the approval of exactly this plan. Raises `Malformed`."""
    if approval is None or PAYOUT not in root.roles:
        return set()
    envelope = decode_unverified(approval)
    if (envelope.kind, envelope.run, envelope.payload) != (PAYOUT, root.run, plan.approval()):
        return set()
    return signers(approval, root.roles[PAYOUT].keys)
