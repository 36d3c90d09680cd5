"""Payments that went out after the copy from which run.sqlite was restored come back into the ledger: `payout restored
--plan`."""

import csv
import json
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.accounts import run_logs
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.run_logs import RestoredCopy
from echo2.coordinator.command_line import command_options
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files import ledger_backup
from echo2.coordinator.payouts import lost_payments, payout_approvals, payout_book, payout_commands, plan_files
from echo2.coordinator.payouts.payout_book import LedgerBook
from echo2.coordinator.payouts.plan_files import PayoutFolder, PlanFile, read_plan
from echo2.coordinator.rails import registry
from echo2.coordinator.run import keys
from echo2.ledger.payout_facts import (
    PAYOUT_RESTORED_KIND,
    UNITS_PER_HUNDREDTH,
    Payouts,
    paid_account,
    payable,
    payment_id,
)
from echo2.p2p.envelope import seal
from echo2.p2p.identity import load_key
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2_rails.https_rail import HttpsRail
from tests.support.payout_provider import Provider
from tests.support.payout_world import (
    LATER,
    add_money,
    add_payout_role,
    fund,
    node,
    set_payout,
    sign_head,
    write_payees,
)
from tests.support.run_folders import load

ALICE, BOB = node(1), node(2)
DAY = 24 * 3600_000
SAID = "every payment of the bank's statement is in the ledger"


def clock() -> int:
    return LATER


@pytest.fixture
def money(home: Path, tmp_path: Path) -> Path:
    """A run that owes alice 12.34 and bob 50.00, with one payout key in `safe`."""
    add_payout_role(home, tmp_path / "safe")
    set_payout(home, rail="csv", minimum=100)
    add_money(home, {ALICE: 1234, BOB: 5000})
    write_payees(home, {ALICE: "alice@example.org", BOB: "bob@example.org"})
    return home


def back_up(home: Path) -> None:
    ledger_backup.backup(RunFolder(home), home.parent / "copy.sqlite", LATER)


def restore(home: Path) -> None:
    """Lose run.sqlite, and put the copy in its place."""
    for path in home.glob("run.sqlite*"):
        path.unlink()
    ledger_backup.restore(RunFolder(home), home.parent / "copy.sqlite", LATER)


async def sent(home: Path, number: int = 1) -> Path:
    """Plan, approve and send; return the plan's folder."""
    await payout_commands.plan(home, clock, do=True)
    folder = home / "payouts" / str(number)
    payout_approvals.approve(folder, home.parent / "safe", None, do=True)
    await payout_commands.send(home, clock, do=True)
    return folder


@pytest.fixture
async def lost(money: Path) -> Path:
    """Return the plan's folder of a run that lost its ledger after it had paid alice and bob."""
    back_up(money)
    folder = await sent(money)
    restore(money)
    return folder


def home_of(folder: Path) -> Path:
    return folder.parent.parent


def balance(home: Path, account: str) -> int:
    """Return a balance in hundredths of the currency."""
    with Database.read(RunFolder(home).database) as database:
        return Ledger(database).balance(account) // UNITS_PER_HUNDREDTH


def kinds(home: Path) -> list[str]:
    with Database.read(RunFolder(home).database) as database:
        return [entry.kind for entry in Ledger(database).entries() if entry.kind.startswith("payout.")]


def key_of(folder: Path, peer: str) -> str:
    return next(one.payment.hex() for one in read_plan(folder).payments if one.node == peer)


def write_results(home: Path, *rows: str) -> None:
    path = home / "payouts" / "csv" / "results.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["key,outcome,amount,reference", *rows]) + "\n")


async def test_lost_payments_come_back_under_their_own_keys_and_are_paid_no_second_time(lost: Path) -> None:
    home = home_of(lost)
    with pytest.raises(LocalFault, match=r"payout restored --plan FOLDER"):
        await payout_commands.plan(home, clock, do=True)
    with pytest.raises(LocalFault, match=r"12\.34 USD to .* may have gone out") as caught:
        payout_commands.record_restoration(home, SAID, do=True)
    assert "payout restored --plan FOLDER" in str(caught.value)
    shown = await payout_commands.put_back(home, lost, clock, do=False)
    assert "put back    2 payments, together 62.34 USD: these count as sent then" in shown
    assert shown[-1] == "nothing was written: --yes puts them back"
    assert kinds(home) == []
    done = await payout_commands.put_back(home, lost, clock, do=True)
    assert done[-1].startswith("next        `echo2-coord payout reconcile --yes`")
    assert kinds(home) == [PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]
    assert (balance(home, paid_account("csv")), balance(home, payable(ALICE)), balance(home, payable(BOB))) == (
        6234,
        0,
        0,
    )
    alice, bob = key_of(lost, ALICE), key_of(lost, BOB)
    assert any(line.startswith(f"open        {alice}, 12.34 USD") for line in payout_commands.report(home, clock))
    assert any("put back 0.0 days ago" in line for line in payout_commands.report(home, clock))
    write_results(home, f"{alice},confirmed,12.34,b1", f"{bob},returned,50.00,b2")
    lines = await payout_commands.reconcile(home, clock, do=True)
    assert "final       1 confirmed, 1 returned; 0 without a final answer yet" in lines
    assert (balance(home, paid_account("csv")), balance(home, payable(ALICE)), balance(home, payable(BOB))) == (
        1234,
        0,
        5000,
    )
    payout_commands.record_restoration(home, SAID, do=True)
    sign_head(home)
    lines = await payout_commands.plan(home, lambda: LATER + 2 * DAY, do=True)
    assert "payments    1, together 50.00 USD" in lines
    assert any(line.startswith("plan        2 of run") for line in lines)
    assert [one.payment for one in read_plan(home / "payouts" / "2").payments] == [
        payment_id(read_plan(lost).run, 2, BOB)
    ]
    assert [path.name for path in (home / "payouts" / "csv").glob("payments-*")] == ["payments-1.csv"]


async def test_what_is_put_back_twice_or_from_a_copied_folder_is_there_once(lost: Path) -> None:
    home = home_of(lost)
    copied = shutil.copytree(lost, home.parent / "of the approver")
    await payout_commands.put_back(home, lost, clock, do=True)
    for folder in (lost, copied):
        lines = await payout_commands.put_back(home, folder, clock, do=True)
        assert "there       2 payments, which the ledger has already" in lines
    assert kinds(home) == [PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]
    assert balance(home, paid_account("csv")) == 6234


async def test_an_approvers_copy_serves_where_the_folder_of_payouts_is_lost_too(lost: Path) -> None:
    home = home_of(lost)
    copied = shutil.copytree(lost, home.parent / "of the approver")
    (copied / "accounts").unlink()
    shutil.rmtree(home / "payouts")
    await payout_commands.put_back(home, copied, clock, do=True)
    write_results(home, f"{key_of(copied, ALICE)},confirmed,12.34,from the statement")
    lines = await payout_commands.reconcile(home, clock, do=True)
    assert "final       1 confirmed, 0 returned; 1 without a final answer yet" in lines
    assert any(line.startswith(f"QUESTION    {key_of(copied, BOB)}") for line in payout_commands.report(home, clock))
    assert not list((home / "payouts" / "csv").glob("payments-*"))


async def test_a_payment_that_the_balance_does_not_cover_waits_and_moves_nothing(money: Path) -> None:
    back_up(money)
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {BOB: 700})
    sign_head(money)
    folder = await sent(money)
    restore(money)
    alice, bob = key_of(folder, ALICE), key_of(folder, BOB)
    lines = await payout_commands.put_back(money, folder, clock, do=True)
    said = f"LACKING     {bob}, 57.00 USD to {BOB}: 50.00 is payable to it, so nothing of it is put back"
    assert said in lines
    assert (balance(money, payable(BOB)), balance(money, payable(ALICE))) == (5000, 0)
    with pytest.raises(LocalFault, match=f"payment {bob}, 57.00 USD") as caught:
        payout_commands.record_restoration(money, SAID, do=True)
    assert alice not in str(caught.value)
    write_payees(money, {ALICE: "alice@example.org", BOB: ""})
    payout_commands.record_restoration(money, SAID, do=True)
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {BOB: 900, node(3): 300})
    sign_head(money)
    write_payees(money, {BOB: "", node(3): "carol@example.org"})
    await sent(money, 2)
    lines = await payout_commands.put_back(money, folder, clock, do=True)
    assert "put back    1 payment, together 57.00 USD: these count as sent then" in lines
    assert kinds(money) == [PAYOUT_RESTORED_KIND, "payout.planned", "payout.sent", PAYOUT_RESTORED_KIND]
    assert balance(money, payable(BOB)) == 200
    assert balance(money, paid_account("csv")) == 1234 + 5700 + 300


async def test_a_plan_of_which_nothing_fits_leaves_its_number_and_its_keys_alone(money: Path) -> None:
    back_up(money)
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {ALICE: 100, BOB: 100})
    sign_head(money)
    folder = await sent(money)
    restore(money)
    lines = await payout_commands.put_back(money, folder, clock, do=True)
    assert len([line for line in lines if line.startswith("LACKING")]) == 2
    assert kinds(money) == []
    write_payees(money, {ALICE: "", BOB: "", node(3): "carol@example.org"})
    payout_commands.record_restoration(money, SAID, do=True)
    add_money(money, {node(3): 300})
    second = await sent(money, 2)
    assert [one.node for one in read_plan(second).payments] == [node(3)]
    add_money(money, {ALICE: 100, BOB: 150})
    await payout_commands.put_back(money, folder, clock, do=True)
    assert (balance(money, payable(ALICE)), balance(money, payable(BOB))) == (0, 50)


async def test_lost_plans_come_back_in_any_order(money: Path) -> None:
    back_up(money)
    first = await sent(money)
    add_money(money, {ALICE: 700})
    second = first.parent / "2"
    write_results(money, f"{key_of(first, ALICE)},confirmed,12.34,b1", f"{key_of(first, BOB)},confirmed,50.00,b2")
    await payout_commands.reconcile(money, clock, do=True)
    await sent(money, 2)
    restore(money)
    for folder in (second, first):
        await payout_commands.put_back(money, folder, clock, do=True)
    assert balance(money, payable(ALICE)) == 534, "of 12.34, without what she earned for the second plan"
    add_money(money, {ALICE: 700})
    await payout_commands.put_back(money, first, clock, do=True)
    assert (balance(money, payable(ALICE)), balance(money, paid_account("csv"))) == (0, 1234 + 5000 + 700)
    payout_commands.record_restoration(money, SAID, do=True)


async def test_a_process_that_dies_between_two_entries_is_continued(
    lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(lost)
    write = LedgerBook.write

    def dying(self: LedgerBook, kind: str, fact: object) -> int:
        write(self, kind, fact)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(LedgerBook, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        await payout_commands.put_back(home, lost, clock, do=True)
    monkeypatch.undo()
    assert kinds(home) == [PAYOUT_RESTORED_KIND]
    with pytest.raises(LocalFault, match="may have gone out"):
        payout_commands.record_restoration(home, SAID, do=True)
    lines = await payout_commands.put_back(home, lost, clock, do=True)
    assert "there       1 payment, which the ledger has already" in lines
    assert kinds(home) == [PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]
    payout_commands.record_restoration(home, SAID, do=True)


async def test_a_plan_that_the_copy_has_is_sent_no_more_once_a_payment_of_it_is_put_back(money: Path) -> None:
    await payout_commands.plan(money, clock, do=True)
    folder = money / "payouts" / "1"
    payout_approvals.approve(folder, money.parent / "safe", None, do=True)
    back_up(money)
    await payout_commands.send(money, clock, do=True)
    restore(money)
    await payout_commands.put_back(money, folder, clock, do=True)
    payout_commands.record_restoration(money, SAID, do=True)
    with pytest.raises(LocalFault, match="nothing of an earlier plan is sent since: plan again"):
        await payout_commands.send(money, clock, do=True)
    assert kinds(money) == ["payout.planned", PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]
    assert any("no more of it, as payments were put back" in line for line in payout_commands.report(money, clock))


async def test_a_payment_that_the_rail_does_not_know_is_a_question_and_is_never_sent_again(lost: Path) -> None:
    home = home_of(lost)
    await payout_commands.put_back(home, lost, clock, do=True)
    shutil.rmtree(home / "payouts" / "csv")
    lines = await payout_commands.reconcile(home, clock, do=True)
    assert any(line.startswith("QUESTIONS   about 2 payments") for line in lines)
    assert not list((home / "payouts" / "csv").glob("payments-*"))
    alice = key_of(lost, ALICE)
    await payout_commands.settle(home, clock, f"{alice}=returned", "the file was never uploaded", do=True)
    assert balance(home, payable(ALICE)) == 1234


async def test_an_answer_from_before_the_restore_is_none_that_a_person_has_decided_about(money: Path) -> None:
    def later() -> int:
        return LATER + 1000

    back_up(money)
    folder = await sent(money)
    alice = key_of(folder, ALICE)
    write_results(money, f"{alice},confirmed,12.34,b1")
    await payout_commands.reconcile(money, clock, do=True)
    restore(money)
    await payout_commands.put_back(money, folder, later, do=True)
    shutil.rmtree(money / "payouts" / "csv")
    await payout_commands.reconcile(money, later, do=True)
    await payout_commands.settle(money, later, f"{alice}=returned", "nobody finds it", do=True)
    write_results(money, f"{alice},confirmed,12.34,b1")
    await payout_commands.reconcile(money, later, do=True)
    asked = [line for line in payout_commands.report(money, later) if line.startswith(f"QUESTION    {alice}")]
    assert "it had said that the money came back" in asked[0]


async def test_another_payment_under_the_same_key_is_a_question_to_a_person(lost: Path) -> None:
    home = home_of(lost)
    moved = home.parent / "moved"
    shutil.move(lost, moved)
    shutil.rmtree(home / "payouts" / "csv")
    (home / "payouts" / "answers.jsonl").unlink()
    payout_commands.record_restoration(home, "nothing ever left", do=True)
    add_money(home, {ALICE: 100})
    await sent(home)
    lines = await payout_commands.put_back(home, moved, clock, do=True)
    assert any(line.startswith(f"QUESTION    {key_of(moved, ALICE)}, 12.34 USD") for line in lines)
    assert "there       1 payment, which the ledger has already" in lines
    assert PAYOUT_RESTORED_KIND not in kinds(home)


def rewritten(folder: Path, signer: Path | None = None, **changed: object) -> None:
    """Write another plan into a folder. `signer`: the folder with the payout key that approves it; None: nobody does
    anew."""
    plan: PlanFile = msgspec.structs.replace(read_plan(folder), **changed)
    (folder / "plan").write_bytes(plan.as_bytes())
    if signer is not None:
        (path,) = signer.glob("payout-*.pem")
        (folder / "approval").write_bytes(seal(keys.PAYOUT, plan.run, plan.approval(), load_key(path, None)))


async def refused(folder: Path) -> str:
    home = home_of(folder)
    for do in (False, True):
        with pytest.raises(LocalFault) as caught:
            await payout_commands.put_back(home, folder, clock, do=do)
    assert kinds(home) == []
    return str(caught.value)


async def test_only_what_people_approved_is_put_back(lost: Path) -> None:
    safe, plan = home_of(lost).parent / "safe", read_plan(lost)
    one, two = plan.payments
    rewritten(lost, payments=[msgspec.structs.replace(one, amount=one.amount + UNITS_PER_HUNDREDTH), two])
    assert "enough payout keys that approve exactly this file" in await refused(lost)
    rewritten(lost, safe, payments=[msgspec.structs.replace(one, node=node(7)), two])
    assert "another key than follows from run, plan and node" in await refused(lost)
    rewritten(lost, safe, payments=plan.payments, run=b"o" * 32)
    assert "belongs to another run" in await refused(lost)
    rewritten(lost, safe, run=plan.run, rail="https")
    assert "payout.rail is csv" in await refused(lost)
    (lost / "plan").write_bytes(plan.as_bytes())
    (lost / "approval").write_bytes(b"junk")
    assert "the approval does not verify" in await refused(lost)
    (lost / "approval").unlink()
    assert "an approver's copy" in await refused(lost)
    (lost / "plan").unlink()
    assert "no plan is in" in await refused(lost)


async def test_an_approval_by_keys_that_the_role_had_then_counts(lost: Path, tmp_path: Path) -> None:
    home = home_of(lost)
    add_payout_role(home, tmp_path / "others", threshold=2, number=2)
    await payout_commands.put_back(home, lost, clock, do=True)
    assert kinds(home) == [PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]


async def test_a_plan_that_too_few_keys_approved_or_of_another_run_holds_nothing_up(money: Path) -> None:
    """Nothing of it was sent, and `payout restored --plan` refuses it."""
    add_payout_role(money, money.parent / "others", threshold=2, number=2)
    back_up(money)
    await payout_commands.plan(money, clock, do=True)
    folder, (first, second) = money / "payouts" / "1", sorted((money.parent / "others").glob("payout-*.pem"))
    for name, path in (("one", first), ("two", second)):
        (money.parent / name).mkdir()
        shutil.copy(path, money.parent / name)
    payout_approvals.approve(folder, money.parent / "one", None, do=True)
    restore(money)
    assert "enough payout keys" in await refused(folder)
    approval = (folder / "approval").read_bytes()
    payout_approvals.approve(folder, money.parent / "two", None, do=True)
    for left in ((folder / "approval").read_bytes(), b"junk"):
        (folder / "approval").write_bytes(left)
        with pytest.raises(LocalFault, match="may have gone out"):
            payout_commands.record_restoration(money, SAID, do=True)
    (folder / "approval").write_bytes(approval)
    roots = (folder / "roots").read_bytes()
    (folder / "roots").write_bytes(b"junk")
    with pytest.raises(LocalFault, match="may have gone out"):
        payout_commands.record_restoration(money, SAID, do=True)
    (folder / "roots").write_bytes(roots)
    rewritten(folder, run=b"o" * 32)
    shown = payout_commands.record_restoration(money, SAID, do=False)
    assert not any("may have gone out" in line for line in shown)
    rewritten(folder, run=load(money).id)
    payout_commands.record_restoration(money, SAID, do=True)


async def test_the_accounts_are_read_once_for_all_lost_payments(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan may have 100,000 payments, and the file as many accounts."""
    reads, inner = [], PayoutFolder.withheld

    def counted(self: PayoutFolder) -> frozenset[str]:
        reads.append(self.path)
        return inner(self)

    monkeypatch.setattr(PayoutFolder, "withheld", counted)
    shown = payout_commands.record_restoration(home_of(lost), SAID, do=False)
    assert len([line for line in shown if "may have gone out" in line]) == 2
    assert len(reads) == 1


async def test_a_plan_over_a_head_of_the_lost_part_is_put_back_and_one_of_no_history_is_not(money: Path) -> None:
    back_up(money)
    add_money(money, {node(9): 1})  # and a further head
    folder = await sent(money)
    restore(money)
    assert read_plan(folder).head == 2
    with Database.open(RunFolder(money).database) as database:
        run_logs.record(database, RestoredCopy(2, 5, LATER))
    assert "its LedgerHead 2 is not the one of this run" in await refused(folder)
    with Database.open(RunFolder(money).database) as database:
        run_logs.record(database, RestoredCopy(1, 5, LATER))
    await payout_commands.put_back(money, folder, clock, do=True)
    assert kinds(money) == [PAYOUT_RESTORED_KIND, PAYOUT_RESTORED_KIND]


async def test_a_ledger_that_was_never_restored_lacks_nothing(money: Path) -> None:
    folder = await sent(money)
    with pytest.raises(LocalFault, match="never restored by `echo2-coord restore`"):
        await payout_commands.put_back(money, folder, clock, do=True)


async def test_a_lost_payment_that_the_provider_made_is_one_transfer_and_a_true_ledger(
    money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [LATER]
    there = Provider(random.Random(0), lambda: now[0])

    def told() -> int:
        return now[0]

    def opened(settings: object, folder: Path, clock: object) -> "Opened":
        return Opened(HttpsRail(there, "USD"))

    monkeypatch.setattr(registry, "open_rail", opened)
    set_payout(money, rail="https", url="https://x.example", credentials="/nothing", minimum=100)
    back_up(money)
    folder = await sent(money)
    assert sorted(one.moved for one in there.transfers.values()) == [1234, 5000]
    restore(money)
    del there.transfers[key_of(folder, BOB)]  # the provider forgets it: nobody may pay it again
    await payout_commands.put_back(money, folder, told, do=True)
    lines = await payout_commands.reconcile(money, told, do=True)
    assert "final       1 confirmed, 0 returned; 1 without a final answer yet" in lines
    now[0] += 30 * DAY
    await payout_commands.reconcile(money, told, do=True)
    assert set(there.moves.values()) == {1}
    assert [one.moved for one in there.transfers.values()] == [1234]
    with Database.read(RunFolder(money).database) as database:
        payouts = payout_book.read(Ledger(database))
    states = {one.sent.node: (one.state, one.question) for one in payouts.payments.values()}
    assert states == {ALICE: ("confirmed", ""), BOB: ("sent", "absent")}
    await payout_commands.settle(money, told, f"{key_of(folder, BOB)}=confirmed", "the statement of May", do=True)
    assert (balance(money, paid_account("https")), balance(money, payable(ALICE)), balance(money, payable(BOB))) == (
        6234,
        0,
        0,
    )


async def test_a_payment_that_the_provider_made_and_then_forgot_is_among_the_lost_ones(
    money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Provider(random.Random(0), clock)
    monkeypatch.setattr(registry, "open_rail", lambda settings, folder, clock: Opened(HttpsRail(there, "USD")))
    set_payout(money, rail="https", url="https://x.example", credentials="/nothing", minimum=100)
    back_up(money)
    folder = await sent(money)
    there.transfers.clear()
    await payout_commands.reconcile(money, clock, do=True)
    shutil.move(folder, money.parent / "7")  # the run's own files name the payments by the provider's answers alone
    restore(money)
    with pytest.raises(LocalFault, match=f"payment {key_of(money.parent / '7', ALICE)} may have gone out"):
        payout_commands.record_restoration(money, SAID, do=True)


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (["taken", "absent"], True), (["done", "absent"], True), (["returned", "unknown"], False),
        (["returned", "done"], True), (["busy", "refused", "absent"], False), (["unknown", "refused", "absent"], True),
        (["absent"], True), (["taken", "refused", "returned"], False), (["taken", "refused"], True),
    ],
)  # fmt: skip
def test_which_answers_leave_a_payment_among_the_lost_ones(words: list[str], listed: bool, tmp_path: Path) -> None:
    """`absent` says nothing about money: the coordinator may have been killed after it sent the payment once more."""
    lines = [msgspec.json.encode({"key": "ab" * 16, "word": word}) for word in words]
    (tmp_path / "answers.jsonl").write_bytes(b"\n".join(lines))
    assert [one.key for one in lost_payments.find_lost_payments(tmp_path, Payouts(), [])] == ["ab" * 16] * listed


class Opened:
    """A rail that is open."""

    def __init__(self, rail: HttpsRail) -> None:
        self._rail = rail

    async def __aenter__(self) -> HttpsRail:
        return self._rail

    async def __aexit__(self, *fault: object) -> None:
        return None


async def test_the_commands(lost: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    home = home_of(lost)
    monkeypatch.setattr(command_options, "now", clock)

    def called(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli.app, ["payout", "restored", "--home", str(home), *words])
        return done.exit_code, done.output

    code, said = await asyncio.to_thread(called, "--plan", str(lost))
    assert (code, "nothing was written: --yes puts them back" in said) == (0, True)
    code, said = await asyncio.to_thread(called, "--plan", str(lost), "--why", SAID)
    assert (code, "two commands" in said) == (Exit.CONFIG, True)
    code, said = await asyncio.to_thread(called, "--plan", str(lost), "--yes")
    assert (code, "put back    2 payments" in said) == (0, True)
    code, said = await asyncio.to_thread(called, "--why", SAID, "--yes")
    assert (code, "payments may be planned and sent again" in said) == (0, True)
    rows = csv.DictReader((home / "payouts" / "csv" / "payments-1.csv").read_text().splitlines())
    assert {row["key"] for row in rows} == {key_of(lost, ALICE), key_of(lost, BOB)}
    assert json.loads((home / "payouts" / plan_files.RESTORED_FILE).read_text())["why"] == SAID
