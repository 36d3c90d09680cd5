"""A run with money in its ledger: nodes with payable balances, a signed head, payout keys."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import keys, keys_commands
from echo2.coordinator.run.root_request import SetChange
from echo2.coordinator.run.sealing import Sealer
from echo2.ledger.ledger_entries import FUND, transfer
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, payable
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys
from echo2.protocol.ledger_heads import LedgerHead
from tests.support.run_folders import NOW, load

LATER = NOW + 3600_000


def node(number: int) -> str:
    """Return the peer id of a node of these tests."""
    return peer_id(number.to_bytes(32, "big"))


class Funded(msgspec.Struct, frozen=True):
    """A fact of these tests: a node has so much that may be paid."""

    amount: int


def fund(ledger: Ledger, amounts: Mapping[str, int]) -> None:
    """Make amounts payable. `amounts`: peer id -> minor units."""
    for peer, amount in amounts.items():
        fact = Funded(amount * UNITS_PER_HUNDREDTH)
        key = f"funded:{ledger.tip().entries + 1}"
        ledger.append(NOW, "test.funded", key, fact, transfer(FUND, payable(peer), fact.amount))


def sign_head(home: Path) -> None:
    run = load(home)
    with Database.open(RunFolder(home).database) as database:
        sealer = Sealer(run)
        heads = LedgerHeads(database, Ledger(database), run.id, sealer, sealer.note, every=1)
        heads.sign(NOW + heads_of(database))


def store_fork(home: Path) -> None:
    """Have a node hold another history's head of the newest number, which the ledger's key signed as well."""
    with Database.open(RunFolder(home).database) as database:
        own = database.value("SELECT sealed FROM ledger_heads ORDER BY number DESC LIMIT 1")
        head = decode(decode_unverified(own).payload, LedgerHead)
        other = msgspec.structs.replace(head, root=bytes(32))
        database.set_fact("foreign_head", Sealer(load(home))("ledgerhead", encode(other)))


def heads_of(database: Database) -> int:
    """Return the number of heads."""
    return int(database.value("SELECT count(*) FROM ledger_heads"))


def add_money(home: Path, amounts: Mapping[str, int]) -> None:
    """Make amounts payable in the ledger of a run folder, under a signed head."""
    with Database.open(RunFolder(home).database) as database:
        fund(Ledger(database), amounts)
    sign_head(home)


def add_payout_role(home: Path, safe: Path, threshold: int = 1, number: int = 1, now: int = NOW + 1000) -> None:
    """Give the run a Root with the role `payout`, issued at `now`, ms; the keys' files are in `safe`."""
    safe.mkdir(exist_ok=True)
    publics = [public_bytes(keys.make_next(safe, keys.PAYOUT, None)) for _ in range(number)]
    request = safe / "request"
    change = SetChange(payout=RoleKeys(keys=publics, threshold=threshold))
    keys_commands.export_root(home, request, change, now=now)
    keys_commands.sign(request, RunFolder(home).keys, secret=None, confirm=lambda lines: True)
    keys_commands.install(home, safe / "request.signed", secret=None)


def set_payout(home: Path, **settings: object) -> None:
    """Write settings of the section `payout` into coordinator.toml."""
    path = RunFolder(home).config
    text = path.read_text().split("[payout]")[0]
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    path.write_text(text + "[payout]\n" + "\n".join(lines) + "\n")


def write_payees(home: Path, accounts: Mapping[str, str]) -> None:
    """Write the operator's file of accounts."""
    folder = home / "payouts"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "payees.json"
    path.write_text(json.dumps(dict(accounts)))
    path.chmod(0o600)
