"""The files of plans, in `payouts/` of the run folder, mode 0700: what the ledger does not tell stays here.

Rules
1. `payees.json` is the operator's: peer id -> account outside the run. It has mode 0600. The account that a node stated
   itself and that is in force goes before it (stated_accounts.py). An empty account withholds the node's pay, whatever
   it stated: as where a payment went out that a restored ledger lacks.
2. `N/plan` states every payment of plan N, with commitments in place of accounts. The ledger and the approvals name its
   SHA-256. `N/accounts`, mode 0600, has each account and its salt. `N/roots` has the run's Roots, by which an approver
   knows the role `payout`. All are durable before the plan's entry.
3. `N/approval` is the sealed approval, with all signatures so far.
4. `restored` has, in JSON, the time of the restore after which the operator compared statement and ledger, and how.
5. A file that is damaged, too large, of another run, or that others may read where it names accounts, is refused with a
   sentence that names it.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from echo2.coordinator.payouts.payout_plan import MOST_PLAN_PAYMENTS, Payee, PlannedPayment
from echo2.coordinator.payouts.stated_accounts import StatedAccounts
from echo2.ledger.payout_facts import PayoutPlanned, commitment
from echo2.p2p.wire_types import encode
from echo2.protocol import root_chain
from echo2.protocol.authority import Root
from echo2.protocol.payout_approval import PayoutApproval
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing

FOLDER: Final = "payouts"
PAYEES: Final = "payees.json"
RESTORED_FILE: Final = "restored"
APPROVAL: Final = "approval"
MOST_BYTES: Final = 256 << 20
"""Bytes of a file."""
T = TypeVar("T")


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `N/plan`."""

    format: Literal["echo2-payout-plan/1"] = "echo2-payout-plan/1"
    run: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    plan: Annotated[int, msgspec.Meta(ge=1)]
    rail: str
    currency: str
    head: Annotated[int, msgspec.Meta(ge=1)]
    head_hash: bytes
    unwitnessed: bool = False
    payments: Annotated[list[PlannedPayment], msgspec.Meta(min_length=1, max_length=MOST_PLAN_PAYMENTS)]

    def as_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def entry_facts(self) -> PayoutPlanned:
        return PayoutPlanned(
            plan=self.plan, rail=self.rail, currency=self.currency, payments=len(self.payments), total=self.total,
            file=hashlib.sha256(self.as_bytes()).digest(), head=self.head, head_hash=self.head_hash,
            unwitnessed=self.unwitnessed,
        )  # fmt: skip

    def approval(self) -> bytes:
        """Return the encoded approval that people sign."""
        fact = self.entry_facts()
        return encode(
            PayoutApproval(run=self.run, plan=self.plan, file=fact.file, head=self.head, head_hash=self.head_hash)
        )

    @property
    def total(self) -> int:
        """The sum of the payments, 10^-9 of the currency."""
        return sum(payment.amount for payment in self.payments)


class _Account(msgspec.Struct, frozen=True, array_like=True):
    payment: bytes
    account: str
    salt: bytes


class _Restored(msgspec.Struct, frozen=True):
    since: int
    why: str


_restored = msgspec.json.Decoder(_Restored)
_payees = msgspec.json.Decoder(dict[str, str])
_accounts = msgspec.msgpack.Decoder(list[_Account])
_plan = msgspec.msgpack.Decoder(PlanFile)
_roots = msgspec.msgpack.Decoder(list[bytes])


class PayoutFolder:
    """The folder `payouts/` of a run folder."""

    def __init__(self, home: Path) -> None:
        self.path = home / FOLDER

    def check_restored(self, since: int | None) -> None:
        """Refuse to go on behind a restored ledger whose payments nobody compared (rule 4). `since`: the time of the
        restore, ms; None: there was none. Raises `LocalFault`."""
        path = self.path / RESTORED_FILE
        compared = _decode_file(path, _restored, private=False).since if path.exists() else None
        if since is not None and compared != since:
            raise LocalFault(
                "run.sqlite was restored from a copy, which may lack payments that went out after it: put them back by "
                "plans, `echo2-coord payout restored --plan FOLDER`, compare the provider's statement with "
                "`echo2-coord payout report`, and then run `echo2-coord payout restored`"
            )

    def write_restored(self, since: int, why: str) -> None:
        """Record that the operator compared them (rule 4). Raises `LocalFault`, `DiskFull`."""
        _write(self.path / RESTORED_FILE, msgspec.json.encode(_Restored(since, why)))

    def plan_folder(self, number: int) -> Path:
        return self.path / str(number)

    def next_number(self, number: int) -> int:
        """Return the number of the next plan: above `number`, of the newest in the ledger, and above each that was
        approved here, whose keys may be in use."""
        names = [path.parent.name for path in self.path.glob(f"*/{APPROVAL}")]
        return 1 + max([number, *(int(name) for name in names if name.isdecimal())])

    def check_known(self, number: int) -> None:
        """Check that no plan was approved here behind `number`, the newest in a ledger that was never restored. Raises
        `LocalFault`."""
        if (lost := self.next_number(number) - 1) > number:
            raise LocalFault(
                f"plan {lost} was approved and is not in the ledger, so run.sqlite is an older copy: find out which of "
                f"its payments were made; if none was, move {self.path / str(lost)} away; else put the copy there by "
                "`echo2-coord backup` and `echo2-coord restore`, after which `payout restored --plan` puts them back"
            )

    def payees(self, now: int, replaced: Mapping[str, int] = MappingProxyType({})) -> dict[str, Payee]:
        """Return the payees by peer id at a time, ms: stated by the operator, or, before that, by themselves. The
        former have a new salt each. `replaced`: node -> when its key was, ms. Raises `LocalFault`."""
        path, stated = self.path / PAYEES, StatedAccounts(self.path)
        by_node = stated.in_force(now, replaced)
        if not path.exists() and not by_node and not stated.coming(now):
            raise LocalFault(
                f"no node has stated an account, and there is no {path}: write one, mode 0600, as "
                "{PEER_ID: ACCOUNT, ...}"
            )
        known = {
            **{node: Payee(account, secrets.token_bytes(32)) for node, account in self._by_operator().items()},
            **{node: Payee(one.account, bytes.fromhex(one.salt)) for node, one in by_node.items()},
        }
        withheld = self.withheld()
        return {node: payee for node, payee in known.items() if node not in withheld}

    def _by_operator(self) -> dict[str, str]:
        path = self.path / PAYEES
        form = ": write it as {PEER_ID: ACCOUNT, ...}, each in double quotes"
        return _decode_file(path, _payees, private=True, remedy=form) if path.exists() else {}

    def named_nodes(self) -> frozenset[str]:
        """Return the nodes that the operator's own file of accounts names. Raises `LocalFault`."""
        return frozenset(self._by_operator())

    def withheld(self) -> frozenset[str]:
        """Return the nodes whose pay the operator withholds (rule 1). Raises `LocalFault`."""
        return frozenset(node for node, account in self._by_operator().items() if not account)

    def coming(self, now: int) -> dict[str, int]:
        """Return when the account of each node is in force that has none before, ms. Raises `LocalFault`."""
        return StatedAccounts(self.path).coming(now)

    def write(self, plan: PlanFile, payees: Mapping[str, Payee], roots: Sequence[bytes]) -> Path:
        """Write the files of a plan that has no entry yet; return its folder. `roots`: roots of the run, sealed. Raises
        `LocalFault`, `DiskFull`."""
        folder = self.plan_folder(plan.plan)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        rows = [_Account(one.payment, payees[one.node].account, payees[one.node].salt) for one in plan.payments]
        _write(folder / "accounts", msgspec.msgpack.encode(rows))
        _write(folder / "roots", msgspec.msgpack.encode(list(roots)))
        _write(folder / "plan", plan.as_bytes())
        (folder / APPROVAL).unlink(missing_ok=True)
        return folder


def read_plan(folder: Path) -> PlanFile:
    """Return the plan in a folder. Raises `LocalFault`."""
    if not (folder / "plan").exists():
        raise LocalFault(f"no plan is in {folder}: name the folder of a plan, such as payouts/1 of the run folder")
    plan = _decode_file(folder / "plan", _plan, private=False)
    if len({one.payment for one in plan.payments}) < len(plan.payments) or plan.total < len(plan.payments):
        raise LocalFault(f"{folder / 'plan'} names a payment twice, or none with an amount")
    return plan


def read_root(folder: Path, plan: PlanFile) -> Root:
    """Return the newest Root beside a plan, verified up to the first one there. Raises `LocalFault`, `Untrusted`."""
    roots: list[bytes] = _decode_file(folder / "roots", _roots, private=False)
    root = root_chain.check_chain(roots)[-1]
    if root.run != plan.run:
        raise LocalFault(
            f"plan {plan.plan} belongs to run {plan.run.hex()[:16]}, and the Roots beside it to run "
            f"{root.run.hex()[:16]}: copy the whole folder of the plan again"
        )
    return root


def read_accounts(folder: Path, payments: Sequence[PlannedPayment]) -> dict[bytes, str]:
    """Return the account of each payment, compared with its commitment. Raises `LocalFault`."""
    path = folder / "accounts"
    rows = {row.payment: row for row in _decode_file(path, _accounts, private=True)}
    for one in payments:
        row = rows.get(one.payment)
        if row is None or commitment(row.account, row.salt) != one.account:
            raise LocalFault(f"{path} has another account for payment {one.payment.hex()} than was planned")
    return {key: row.account for key, row in rows.items()}


def read_approval(folder: Path) -> bytes | None:
    """Return the sealed approval in a plan's folder; None: there is none. Raises `LocalFault`."""
    path = folder / APPROVAL
    return _read(path, private=False) if path.exists() else None


def write_approval(folder: Path, sealed: bytes) -> None:
    """Write the sealed approval of a plan. Raises `LocalFault`, `DiskFull`."""
    _write(folder / APPROVAL, sealed)


def _decode_file(
    path: Path, decoder: "msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]", *, private: bool, remedy: str = ""
) -> T:
    try:
        return decoder.decode(_read(path, private=private))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalFault(f"{path} cannot be read: {error}{remedy}") from error


def _read(path: Path, *, private: bool) -> bytes:
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LocalFault(f"cannot read {path}: {error.strerror}") from error
    if private and facts.st_mode & 0o077:
        raise LocalFault(f"others may read {path}, which names accounts: `chmod 600` it")
    if len(data) > MOST_BYTES:
        raise LocalFault(f"{path} has more than {MOST_BYTES} bytes")
    return data


def _write(path: Path, data: bytes) -> None:
    try:
        with writing(path, 0o600) as file:
            file.write(data)
    except OSError as error:
        raise LocalFault(f"cannot write {path}: {error.strerror}") from error
