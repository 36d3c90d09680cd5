"""The document by which people let a plan of payments go: kind `payout`, signed by the Root's role `payout`, m of n."""

from echo2.p2p.wire_types import Count, Hash, Wire


class PayoutApproval(Wire, frozen=True):
    """approvers, offline -> coordinator. `plan`: its number. `file`: SHA-256 of the plan's file, which states every
    payment. `head`, `head_hash`: number and SHA-256 of the sealed LedgerHead on which the plan rests."""

    run: Hash
    plan: Count
    file: Hash
    head: Count
    head_hash: Hash
