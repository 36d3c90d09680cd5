"""Read what a node's folder has of its earnings: receipts, proofs of epochs, and what the run last told.

The receipts and proofs were verified before they were stored; `echo2-node receipts verify` does it again.
"""

from contextlib import closing
from pathlib import Path

from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig
from echo2.node.joined_run import permalink
from echo2.node.market import payee_file
from echo2.node.market.earnings import EarningsSources, Electricity
from echo2.node.market.stored_market import joined_run
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.receipts import PaidEpochs, epochs_of
from echo2.node.trust.ledger_store import LedgerStore
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Receipt
from echo2.protocol.money_text import parse_amount


def read(config: NodeConfig) -> EarningsSources:
    """Read everything. Raises `BadConfig` if no run was joined, `NodeError`, `LocalFault`."""
    run = joined_run(config.home)
    if run is None:
        raise BadConfig(f"no run was joined in {config.home}: give an invite with echo2-node join INVITE")
    receipts = _accepted_receipts(run.folder)
    me = peer_id(receipts[-1].node) if receipts else ""
    paid = PaidEpochs([], [])
    if receipts and run.currency:
        with closing(LedgerStore(run.folder / "ledger.sqlite")) as store:
            paid = epochs_of(run.folder, me, store.root_of)
    electricity = None
    if config.watts is not None:
        electricity = Electricity(config.watts, None if config.tariff is None else parse_amount(config.tariff))
    lacks = list(paid.faults)
    if run.spec is None:
        lacks.append("what the run pays: the run has not answered a node here yet")
    if run.currency and run.newest is None:
        lacks.append("balances and place: the run has not been asked yet")
    if run.currency and payee_file.read(run.folder).told is None:
        lacks.append("least payment and fee: `echo2-node payout show` asks for them")
    return EarningsSources(
        run.name, run.currency, receipts, paid.epochs, run.newest, payee_file.read(run.folder), electricity, lacks,
        page=permalink(run.spec, me) if run.spec is not None and me else "", joined=run.spec is not None,
    )  # fmt: skip


def _accepted_receipts(folder: Path) -> list[Receipt]:
    """Return the accepted receipts, oldest first."""
    path = folder / "outbox.sqlite"
    if not path.exists():
        return []
    with closing(Outbox(path, node=bytes(32), limit=1)) as outbox:
        rows = [row.receipt for row in outbox.rows() if row.state == "accepted" and row.receipt is not None]
    receipts = [decode(decode_unverified(sealed).payload, Receipt) for sealed in rows]
    return sorted(receipts, key=lambda one: (one.at, one.entry))
