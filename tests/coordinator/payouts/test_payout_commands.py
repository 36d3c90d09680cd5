"""`echo2-coord payout`: from a balance in the ledger to money that left, and all that forbids it."""

import csv
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.accounts import payout_hold
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.command_line import command_options
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.payouts import payout_approvals, payout_book, payout_commands
from echo2.coordinator.payouts.plan_files import read_plan
from echo2.coordinator.payouts.stated_accounts import StatedAccounts
from echo2.coordinator.run import keys
from echo2.ledger.ledger_entries import FUND, accrued_account, transfer
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, PayoutEnded, paid_account, payable
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol.payout_approval import PayoutApproval
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.coordinator.payouts.conftest import Nodes
from tests.support import paths
from tests.support.payout_world import (
    LATER,
    add_money,
    add_payout_role,
    fund,
    node,
    set_payout,
    sign_head,
    store_fork,
    write_payees,
)

ALICE, BOB = node(1), node(2)
DAY = 24 * 3600_000


@pytest.fixture
def money(home: Path, tmp_path: Path) -> Path:
    """A run that owes alice 12.34 and bob 50.00, with one payout key in `safe`."""
    add_payout_role(home, tmp_path / "safe")
    set_payout(home, rail="csv", minimum=100)
    add_money(home, {ALICE: 1234, BOB: 5000})
    write_payees(home, {ALICE: "alice@example.org", BOB: "bob@example.org"})
    return home


def clock() -> int:
    return LATER


async def planned(home: Path) -> Path:
    await payout_commands.plan(home, clock, do=True)
    return home / "payouts" / "1"


def approve(home: Path, folder: Path) -> list[str]:
    return payout_approvals.approve(folder, home.parent / "safe", None, do=True)


def balances(home: Path) -> dict[str, int]:
    with Database.read(RunFolder(home).database) as database:
        return Ledger(database).balances()


async def test_from_a_balance_to_a_file_and_back_to_the_ledger(money: Path) -> None:
    folder = await planned(money)
    shown = approve(money, folder)
    assert any("signed by 1 key:" in line for line in shown)
    assert f"largest     50.00 USD to {BOB} bob@example.org" in shown
    lines = await payout_commands.send(money, clock, do=True)
    assert "sent        2 payments for the first time" in lines
    written = (money / "payouts" / "csv" / "payments-1.csv").read_text().splitlines()
    rows = {row["account"]: row for row in csv.DictReader(written)}
    assert {account: row["amount"] for account, row in rows.items()} == {
        "alice@example.org": "12.34", "bob@example.org": "50.00",
    }  # fmt: skip
    assert balances(money)[paid_account("csv")] == 6234 * UNITS_PER_HUNDREDTH
    alice, bob = (rows[f"{name}@example.org"]["key"] for name in ("alice", "bob"))
    results = f"key,outcome,amount,reference\n{alice},confirmed,12.34,b1\n{bob},returned,50.00,b2\n"
    (money / "payouts" / "csv" / "results.csv").write_text(results)
    lines = await payout_commands.reconcile(money, clock, do=True)
    assert "final       1 confirmed, 1 returned; 0 without a final answer yet" in lines
    after = balances(money)
    assert (after[paid_account("csv")], after[payable(BOB)], after[payable(ALICE)]) == (
        1234 * UNITS_PER_HUNDREDTH,
        5000 * UNITS_PER_HUNDREDTH,
        0,
    )
    again = await payout_commands.reconcile(money, clock, do=True)
    assert "final       0 confirmed, 0 returned; 0 without a final answer yet" in again
    assert len((money / "payouts" / "answers.jsonl").read_text().splitlines()) >= 4
    report = payout_commands.report(money, clock)
    assert "confirmed   1 payment, 12.34 USD" in report
    done = replayed_by_the_second(RunFolder(money).database)
    assert done == "", done


def replayed_by_the_second(database: Path) -> str:
    """Replay a ledger by the program that was written from the page alone; return what it complains about."""
    second = str(paths.ROOT / "tests/second")
    code = f"import sys; sys.path.insert(0, {second!r}); import accounts; accounts.Replay({str(database)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


async def test_without_yes_nothing_is_written_signed_or_sent(money: Path) -> None:
    before = balances(money)
    lines = await payout_commands.plan(money, clock, do=False)
    assert "payments    2, together 62.34 USD" in lines
    assert not (money / "payouts" / "1").exists()
    folder = await planned(money)
    payout_approvals.approve(folder, money.parent / "safe", None, do=False)
    assert not (folder / "approval").exists()
    approve(money, folder)
    assert "nothing was sent" in (await payout_commands.send(money, clock, do=False))[-1]
    assert "nothing was asked" in (await payout_commands.reconcile(money, clock, do=False))[-1]
    assert balances(money) == before
    assert not (money / "payouts" / "csv" / "payments-1.csv").exists()


async def test_pay_that_the_operator_withholds_is_neither_planned_nor_sent_whatever_account_was_stated(
    money: Path,
) -> None:
    StatedAccounts(money / "payouts").state(ALICE, "alice@example.org", bytes(32), LATER - 2 * DAY)
    approve(money, await planned(money))
    write_payees(money, {ALICE: "", BOB: "bob@example.org"})  # a copy was restored: her payment went out before
    lines = await payout_commands.send(money, clock, do=True)
    assert any("1 payment:" in line and "you withhold its pay" in line for line in lines), lines
    assert balances(money)[paid_account("csv")] == 5000 * UNITS_PER_HUNDREDTH
    shown = await payout_commands.plan(money, clock, do=False)
    assert any("12.34" in line and "you withhold its pay" in line for line in shown), shown


async def test_a_plan_that_is_sent_twice_pays_once(money: Path) -> None:
    approve(money, await planned(money))
    await payout_commands.send(money, clock, do=True)
    lines = await payout_commands.send(money, clock, do=True)
    assert "sent        0 payments for the first time" in lines
    assert not (money / "payouts" / "csv" / "payments-2.csv").exists()


async def test_points_are_never_planned_and_money_waits_for_a_payout_role(home: Path) -> None:
    for refused in (payout_commands.plan, payout_commands.send, payout_commands.reconcile):
        with pytest.raises(LocalFault, match="points are credited at the verdict"):
            await refused(home, clock, do=True)
    set_payout(home, rail="csv")
    for refused in (payout_commands.plan, payout_commands.send, payout_commands.reconcile):
        with pytest.raises(LocalFault, match="no role `payout`"):
            await refused(home, clock, do=True)


async def test_no_plan_is_sent_that_too_few_keys_approve(home: Path, tmp_path: Path) -> None:
    add_payout_role(home, tmp_path / "safe", threshold=2, number=3)
    set_payout(home, rail="csv", minimum=100)
    add_money(home, {ALICE: 1234})
    write_payees(home, {ALICE: "alice@example.org"})
    folder = await planned(home)
    with pytest.raises(LocalFault, match="0 of 2 required payout keys"):
        await payout_commands.send(home, clock, do=True)
    for number, path in enumerate(sorted((tmp_path / "safe").glob("payout-*.pem"))[:2], start=1):
        one = tmp_path / f"approver{number}"
        one.mkdir()
        shutil.copy2(path, one / path.name)
        if number == 2:
            with pytest.raises(LocalFault, match="1 of 2 required payout keys"):
                await payout_commands.send(home, clock, do=True)
        first = payout_approvals.approve(folder, one, None, do=True)
        assert f"approved    by {number} of 2 required keys" in first[-1]
        again = payout_approvals.approve(folder, one, None, do=True)
        assert "signed      already by key" in "\n".join(again)
        assert again[-1] == first[-1]
    assert "sent        1 payment for" in "\n".join(await payout_commands.send(home, clock, do=True))


async def test_a_key_that_the_root_does_not_name_signs_nothing(money: Path, tmp_path: Path) -> None:
    folder, strange = await planned(money), tmp_path / "stranger"
    strange.mkdir()
    own = keys.digits(public_bytes(keys.make_next(strange, keys.PAYOUT, None)))
    for do in (False, True):
        with pytest.raises(LocalFault, match=f"nothing was signed: payout-{own}.pem .* may approve nothing"):
            payout_approvals.approve(folder, strange, None, do=do)
    assert not (folder / "approval").exists()
    for path in (money.parent / "safe").glob("payout-*.pem"):
        shutil.copy2(path, strange / path.name)
    lines = payout_approvals.approve(folder, strange, None, do=True)
    assert any(line.startswith(f"not used    payout-{own}.pem") for line in lines)
    assert lines[-1] == "approved    by 1 of 1 required keys; enough: `echo2-coord payout send` checks it"


async def test_a_strangers_signature_counts_for_nothing(money: Path) -> None:
    folder = await planned(money)
    plan = read_plan(folder)
    (folder / "approval").write_bytes(seal(keys.PAYOUT, plan.run, plan.approval(), generate_key()))
    with pytest.raises(LocalFault, match="0 of 1 required payout keys"):
        await payout_commands.send(money, clock, do=True)


async def test_an_approver_who_was_told_the_hash_signs_no_other_file(money: Path) -> None:
    folder, safe = await planned(money), money.parent / "safe"
    with pytest.raises(LocalFault, match=r"has the SHA-256 .*, and not the one that you named"):
        payout_approvals.approve(folder, safe, None, "00" * 32, do=True)
    told = read_plan(folder).entry_facts().file.hex().upper()
    assert "signed by 1 key:" in "\n".join(payout_approvals.approve(folder, safe, None, told, do=True))


async def test_an_approval_of_something_else_is_named_and_stays(money: Path) -> None:
    folder = await planned(money)
    plan, key = read_plan(folder), generate_key()
    replaced = msgspec.structs.replace
    for other, said in (
        (replaced(plan, plan=7), "approves plan 7 "),
        (replaced(plan, payments=plan.payments[:1]), "approves another file or LedgerHead of this plan"),
        (replaced(plan, head=plan.head + 1), "approves another file or LedgerHead of this plan"),
        (replaced(plan, run=b"o" * 32), "an approval of another run"),
    ):
        there = seal(keys.PAYOUT, other.run, other.approval(), key)
        (folder / "approval").write_bytes(there)
        with pytest.raises(LocalFault, match=said):
            approve(money, folder)
        assert (folder / "approval").read_bytes() == there
    (folder / "approval").write_bytes(b"junk")
    with pytest.raises(LocalFault, match="is damaged: move it away"):
        approve(money, folder)


async def test_a_plan_of_another_run_or_without_its_roots_is_not_signed(money: Path) -> None:
    folder = await planned(money)
    plan = read_plan(folder)
    (folder / "plan").write_bytes(msgspec.structs.replace(plan, run=b"o" * 32).as_bytes())
    with pytest.raises(LocalFault, match="copy the whole folder of the plan again"):
        approve(money, folder)
    (folder / "plan").write_bytes(plan.as_bytes())
    (folder / "roots").unlink()
    with pytest.raises(LocalFault, match=r"cannot read .*roots"):
        approve(money, folder)


async def test_a_plan_says_who_is_not_paid_and_why_and_all_amounts_agree(money: Path) -> None:
    carol, dave, erin, frank = (node(number) for number in (3, 4, 5, 6))
    set_payout(money, rail="csv", minimum=100, node_limit=4000)
    with Database.open(RunFolder(money).database) as database:
        ledger = Ledger(database)
        fund(ledger, {carol: 99, dave: 700, erin: 300})
        fact = PayoutEnded(payment=bytes(16), number=1, node=ALICE)
        ledger.append(
            LATER, "test.accrued", "one", fact, transfer(FUND, accrued_account(ALICE), 3 * UNITS_PER_HUNDREDTH + 5)
        )
        ledger.append(
            LATER, "test.accrued", "two", fact, transfer(FUND, accrued_account(frank), 2 * UNITS_PER_HUNDREDTH)
        )
    sign_head(money)
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {BOB: 11})
    StatedAccounts(money / "payouts").state(erin, "erin@example.org", bytes(32), LATER - 1000)
    write_payees(money, {ALICE: "alice@example.org", BOB: "bob@example.org", carol: "carol@example.org"})
    lines = await payout_commands.plan(money, clock, do=False)
    shown = "\n".join(lines)
    assert f"not paid    1 node, 0.99 USD: less than the least payment, 1.00\n            {carol} 0.99 USD" in shown
    assert f"            {dave} 7.00 USD" in shown
    assert "no account is known" in shown
    assert "not paid    1 node, 3.00 USD: its account is in force from 2" in shown
    assert (
        "payable     73.44 USD = 52.34 planned + 10.99 of the nodes above + 10.00 stays with nodes that are paid, as "
        "less than a hundredth or above payout.node_limit + 0.11 came after the LedgerHead"
    ) in lines
    assert any(line.startswith("not payable 0.050000005 USD held back and 0.00 USD not vested yet") for line in lines)
    assert lines[-3:-1] == [
        "not yet     1 node, 0.02 USD of it: nothing of theirs is payable yet", f"            {frank} 0.02 USD",
    ]  # fmt: skip
    report = payout_commands.report(money, clock)
    assert "payable     73.44 USD, to 6 nodes" in report


async def test_accounts_that_are_not_in_force_yet_are_a_reason_and_no_fault(money: Path) -> None:
    (money / "payouts" / "payees.json").unlink()
    StatedAccounts(money / "payouts").state(ALICE, "alice@example.org", bytes(32), LATER)
    lines = await payout_commands.plan(money, clock, do=False)
    assert lines[-1].startswith("there is nothing to pay out: its account is in force from ")
    assert any(line.startswith("payable     62.34 USD = 0.00 planned + 62.34 of the nodes above") for line in lines)
    with pytest.raises(LocalFault, match="there is nothing to pay out"):
        await payout_commands.plan(money, clock, do=True)


async def refused(home: Path) -> str:
    with pytest.raises(LocalFault) as caught:
        await payout_commands.send(home, clock, do=True)
    assert balances(home).get(paid_account("csv"), 0) == 0
    return str(caught.value)


async def test_nothing_is_paid_while_the_head_is_not_published(money: Path, nodes: Nodes) -> None:
    approve(money, await planned(money))
    nodes.newest = 0
    assert "not published" in await refused(money)


async def test_nothing_is_planned_or_paid_while_nodes_have_yet_to_tell_of_their_heads(
    money: Path, nodes: Nodes
) -> None:
    approve(money, await planned(money))
    nodes.wait = "1 of 3 parties with accepted work have told"
    assert nodes.wait in await refused(money)
    for do in (False, True):
        with pytest.raises(LocalFault, match=r"nothing is planned: 1 of 3 parties .*`echo2-coord payout plan --unw"):
            await payout_commands.plan(money, clock, do=do)


async def test_the_operator_goes_on_without_nodes_and_file_ledger_and_approvers_learn_it(
    money: Path, nodes: Nodes
) -> None:
    nodes.wait, nodes.newest = "no coordinator runs", 0
    said = "UNWITNESSED no nodes have confirmed that the ledger is the newest"
    assert said in await payout_commands.plan(money, clock, do=True, unwitnessed=True)
    folder = money / "payouts" / "1"
    assert read_plan(folder).unwitnessed
    with Database.read(RunFolder(money).database) as database:
        newest = payout_book.read(Ledger(database)).plan
    assert newest.planned.unwitnessed
    assert said in approve(money, folder)
    assert "sent        2 payments for the first time" in await payout_commands.send(money, clock, do=True)


async def test_a_plan_that_waits_for_nobody_is_witnessed_whatever_was_asked(money: Path) -> None:
    await payout_commands.plan(money, clock, do=True, unwitnessed=True)
    assert not read_plan(money / "payouts" / "1").unwitnessed


async def test_nothing_is_planned_while_a_fork_is_known_whoever_goes_on(money: Path) -> None:
    store_fork(money)
    for unwitnessed in (False, True):
        with pytest.raises(LocalFault, match="evidence of a fork"):
            await payout_commands.plan(money, clock, do=False, unwitnessed=unwitnessed)


async def test_nothing_is_paid_while_a_fork_is_known(money: Path) -> None:
    approve(money, await planned(money))
    store_fork(money)
    assert "evidence of a fork" in await refused(money)


async def test_nothing_is_paid_from_a_ledger_that_does_not_verify(money: Path) -> None:
    approve(money, await planned(money))
    with Database.open(RunFolder(money).database) as database:
        database.do("UPDATE balances SET amount = amount + 1 WHERE account = ?", (payable(BOB),))
    assert "does not verify" in await refused(money)


async def test_nothing_is_paid_by_a_plan_whose_file_was_altered(money: Path) -> None:
    folder = await planned(money)
    approve(money, folder)
    data = (folder / "plan").read_bytes()
    (folder / "plan").write_bytes(data.replace(ALICE.encode(), BOB.encode()))
    assert "this file is not it" in await refused(money)
    (folder / "plan").write_bytes(data)
    accounts = (folder / "accounts").read_bytes()
    (folder / "accounts").write_bytes(accounts.replace(b"alice@", b"mallo@"))
    assert "another account" in await refused(money)
    (folder / "accounts").chmod(0o644)
    assert "chmod 600" in await refused(money)


async def test_an_earlier_plan_is_never_sent(money: Path) -> None:
    folder = await planned(money)
    approve(money, folder)
    shutil.copytree(folder, money / "kept")
    lost = "its 2 unsent payments, together 62.34 USD, can be sent no more, whoever approved it"
    assert f"replaces    plan 1: with --yes {lost}" in await payout_commands.plan(money, clock, do=False)
    assert f"replaced    plan 1: {lost}" in await payout_commands.plan(money, clock, do=True)
    shutil.rmtree(money / "payouts" / "2")
    shutil.copytree(money / "kept", money / "payouts" / "2")
    assert "the newest plan in the ledger is plan 2" in await refused(money)


async def test_a_further_plan_names_those_payments_alone_of_the_one_before_that_were_not_sent(money: Path) -> None:
    set_payout(money, rail="csv", minimum=100, node_limit=5000, day_limit=5000)
    assert not [line for line in await payout_commands.plan(money, clock, do=True) if "replaced" in line]
    approve(money, money / "payouts" / "1")
    await payout_commands.send(money, clock, do=True)
    told = [line for line in await payout_commands.plan(money, clock, do=False) if line.startswith("replaces")]
    assert len(told) == 1
    assert "its 1 unsent payment, together" in told[0], told
    await payout_commands.plan(money, clock, do=True)
    approve(money, money / "payouts" / "2")
    await payout_commands.send(money, lambda: LATER + 2 * DAY, do=True)
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {ALICE: 1000, BOB: 1000})
    sign_head(money)
    later = await payout_commands.plan(money, lambda: LATER + 9 * DAY, do=False)
    assert not [line for line in later if line.startswith("replaces")]


BAD_FILES = {
    "an outcome that is none": (
        "results.csv",
        "key,outcome,amount,reference\nx,paid,1.00,a\n",
        "line 2: needs 4 cells",
    ),
    "another first line": ("results.csv", "key;outcome\n", "the first line of .*results.csv should be"),
    "a journal that is damaged": ("rows-1.jsonl", "no\n", "the journal of payments .* is damaged"),
}


@pytest.mark.parametrize("bad", BAD_FILES)
async def test_without_yes_reconcile_reports_the_faults_of_files_that_it_reports_with_it(money: Path, bad: str) -> None:
    approve(money, await planned(money))
    await payout_commands.send(money, clock, do=True)
    name, text, said = BAD_FILES[bad]
    (money / "payouts" / "csv" / name).write_text(text)
    for do in (False, True):
        with pytest.raises(LocalFault, match=said):
            await payout_commands.reconcile(money, clock, do=do)


async def test_an_outcome_of_a_payment_that_the_ledger_lacks_is_named_and_the_others_count(money: Path) -> None:
    approve(money, await planned(money))
    lines = await payout_commands.send(money, clock, do=True)
    file = money / "payouts" / "csv" / "payments-1.csv"
    assert lines[-1] == f"file        {file}: hand it on once"
    assert not [line for line in await payout_commands.send(money, clock, do=True) if line.startswith("file")]
    row = next(csv.DictReader(file.read_text().splitlines()))
    key, amount = row["key"], row["amount"]
    report = payout_commands.report(money, clock)
    assert [line for line in report if line.startswith(f"open        {key}, ") and " USD to 12D3" in line]
    results = file.with_name("results.csv")
    results.write_text(f"key,outcome,amount,reference\n{key[:-1]}x,confirmed,{amount},a\n{key},confirmed,{amount},b\n")
    said = f"unknown     {key[:-1]}x in {results} is no payment in the ledger: nothing follows from its line"
    assert said in await payout_commands.reconcile(money, clock, do=False)
    lines = await payout_commands.reconcile(money, clock, do=True)
    assert said in lines
    assert "final       1 confirmed, 0 returned; 1 without a final answer yet" in lines


async def test_a_line_that_contradicts_a_decision_is_asked_about_once_and_named_until_it_is_corrected(
    money: Path,
) -> None:
    folder = await planned(money)
    approve(money, folder)
    await payout_commands.send(money, clock, do=True)
    key, amount = read_plan(folder).payments[0].payment.hex(), amounts(folder)[0]
    results = money / "payouts" / "csv" / "results.csv"

    async def reconciled(line: str) -> list[str]:
        results.write_text(f"key,outcome,amount,reference\n{line}\n")
        return [one for one in await payout_commands.reconcile(money, clock, do=True) if one[:1] in "Qd"]

    await payout_commands.settle(money, clock, f"{key}=returned", "it bounced", do=True)
    for line in (f"{key},confirmed,{amount},a", f"{key},confirmed,1.00,a"):
        assert len(await reconciled(line)) == 1, "another line is another question"
        asked = [one for one in payout_commands.report(money, clock) if one.startswith("QUESTION")]
        assert len(asked) == 1
        assert "your line in payouts/csv/results.csv says so: correct it where it is wrong" in asked[0]
        await payout_commands.settle(money, clock, f"{key}=returned", "the statement has it back", do=True)
        for _ in range(2):
            told = await reconciled(line)
            assert told == [
                f"decided     {key}: it stays returned, as you answered, though the provider says otherwise again "
                "(your line in payouts/csv/results.csv says so: correct it where it is wrong)"
            ]
    assert await reconciled(f"{key},returned,{amount},a") == []
    assert not [one for one in payout_commands.report(money, clock) if one.startswith("QUESTION")]


async def test_without_yes_reconcile_changes_no_file(money: Path) -> None:
    approve(money, await planned(money))
    await payout_commands.send(money, clock, do=True)
    torn = money / "payouts" / "csv" / "rows-1.jsonl"
    torn.write_bytes(torn.read_bytes() + b'{"key":')
    (money / "payouts" / "csv" / "payments-1.csv").unlink()
    before = {path.name: path.read_bytes() for path in torn.parent.iterdir()}
    assert (await payout_commands.reconcile(money, clock, do=False))[0].startswith("2 payments would be asked about")
    assert {path.name: path.read_bytes() for path in torn.parent.iterdir()} == before


async def test_another_rail_than_the_plans_is_refused(money: Path) -> None:
    approve(money, await planned(money))
    set_payout(money, rail="https", url="https://x.example", credentials="/nothing")
    with pytest.raises(LocalFault, match=r"payout\.rail is https"):
        await payout_commands.send(money, clock, do=True)


async def test_an_expired_root_pays_nothing(money: Path) -> None:
    approve(money, await planned(money))
    with pytest.raises(LocalFault, match="expired"):
        await payout_commands.send(money, lambda: LATER + 400 * DAY, do=True)


async def test_a_question_is_listed_and_answered_by_a_person(money: Path) -> None:
    approve(money, await planned(money))
    await payout_commands.send(money, clock, do=True)
    await payout_commands.reconcile(money, lambda: LATER + 8 * DAY, do=True)
    report = payout_commands.report(money, lambda: LATER + 8 * DAY)
    questions = [line for line in report if line.startswith("QUESTION")]
    assert len(questions) == 2
    assert all("8.0 days ago" in line and "--settle" in line for line in questions)
    key = questions[0].split()[1].rstrip(",")
    with pytest.raises(LocalFault, match="--why"):
        await payout_commands.settle(money, clock, f"{key}=confirmed", "", do=True)
    with pytest.raises(LocalFault, match="KEY=confirmed"):
        await payout_commands.settle(money, clock, f"{key}=paid", "x", do=True)
    with pytest.raises(LocalFault, match="no payment has the key"):
        await payout_commands.settle(money, clock, "zz=confirmed", "x", do=True)
    await payout_commands.settle(money, clock, f"{key}=confirmed", "the bank's statement of May", do=False)
    assert len([line for line in payout_commands.report(money, clock) if line.startswith("QUESTION")]) == 2
    await payout_commands.settle(money, clock, f"{key}=confirmed", "the bank's statement of May", do=True)
    assert len([line for line in payout_commands.report(money, clock) if line.startswith("QUESTION")]) == 1


async def test_without_yes_an_answer_that_cannot_follow_is_refused_too(money: Path) -> None:
    approve(money, await planned(money))
    await payout_commands.send(money, clock, do=True)
    row = next(csv.DictReader((money / "payouts" / "csv" / "payments-1.csv").read_text().splitlines()))
    await payout_commands.settle(money, clock, f"{row['key']}=returned", "the bank's statement of May", do=True)
    before = balances(money)
    for do in (False, True):
        with pytest.raises(LocalFault, match=r"recorded: .* cannot follow"):
            await payout_commands.settle(money, clock, f"{row['key']}=confirmed", "the bank's statement of June", do=do)
    assert balances(money) == before


async def test_a_name_with_a_slip_in_the_file_of_accounts_is_named(money: Path) -> None:
    write_payees(money, {ALICE[:-1]: "", ALICE: "alice@example.org", BOB: "bob@example.org"})
    said = f"unknown     {ALICE[:-1]} in payees.json is no node of the ledger: the line pays and withholds nothing"
    shown = await payout_commands.plan(money, clock, do=False)
    written = await payout_commands.plan(money, clock, do=True)
    assert [line for line in shown if line.startswith("unknown")] == [said]
    assert [line for line in written if line.startswith("unknown")] == [said]
    assert not [line for line in shown if "SHA-256" in line]
    assert f"file        SHA-256 {read_plan(money / 'payouts' / '1').entry_facts().file.hex()}" in written


def test_a_folder_without_a_plan_is_no_plan(money: Path) -> None:
    with pytest.raises(LocalFault, match=r"no plan is in .*: name the folder of a plan"):
        approve(money, money / "payouts")


async def test_a_node_with_a_bad_account_is_named_and_the_others_are_paid(money: Path) -> None:
    write_payees(money, {ALICE: "=HYPERLINK(1)", BOB: "bob@example.org"})
    lines = await payout_commands.plan(money, clock, do=False)
    assert "payments    1, together 50.00 USD" in lines
    assert any("formula" in line for line in lines)


async def test_files_of_accounts_that_others_may_read_or_that_are_no_json_are_refused(money: Path) -> None:
    path = money / "payouts" / "payees.json"
    path.chmod(0o644)
    with pytest.raises(LocalFault, match="chmod 600"):
        await payout_commands.plan(money, clock, do=True)
    path.chmod(0o600)
    for text in ("{", "[]", '{"a": 1}', "\x00"):
        path.write_text(text)
        with pytest.raises(LocalFault, match=r"payees\.json cannot be read"):
            await payout_commands.plan(money, clock, do=True)
    path.unlink()
    with pytest.raises(LocalFault, match="PEER_ID"):
        await payout_commands.plan(money, clock, do=True)


async def test_there_is_no_plan_without_a_head_or_without_money(home: Path, tmp_path: Path) -> None:
    add_payout_role(home, tmp_path / "safe")
    set_payout(home, rail="csv")
    write_payees(home, {})
    Database.open(RunFolder(home).database).close()
    with pytest.raises(LocalFault, match="no signed head"):
        await payout_commands.plan(home, clock, do=True)
    add_money(home, {ALICE: 5})
    with pytest.raises(LocalFault, match="less than the least payment"):
        await payout_commands.plan(home, clock, do=True)


async def test_money_that_no_head_covers_waits(money: Path) -> None:
    with Database.open(RunFolder(money).database) as database:
        fund(Ledger(database), {ALICE: 1000})
    assert "payments    2, together 62.34 USD" in await payout_commands.plan(money, clock, do=False)
    sign_head(money)
    assert "payments    2, together 72.34 USD" in await payout_commands.plan(money, clock, do=False)


def put_back(home: Path, copy: Path) -> None:
    """Put an older copy of the database in its place, as `echo2-coord restore` does."""
    shutil.copy2(copy, RunFolder(home).database)
    for path in home.glob("run.sqlite-*"):
        path.unlink()


async def test_nothing_is_planned_while_an_approved_plan_is_there_that_the_ledger_forgot(money: Path) -> None:
    shutil.copy2(RunFolder(money).database, money / "older")
    approve(money, await planned(money))
    put_back(money, money / "older")
    with pytest.raises(LocalFault, match=r"so run\.sqlite is an older copy"):
        await payout_commands.plan(money, clock, do=True)


async def test_a_payment_that_went_out_after_the_copy_is_paid_no_second_time(money: Path) -> None:
    """Two payments went out after the copy: one of a plan whose files are there, and one of which only the key is."""
    shutil.copy2(RunFolder(money).database, money / "older")
    folder = await planned(money)
    approve(money, folder)
    await payout_commands.send(money, clock, do=True)
    alice, bob = (one.payment.hex() for one in sorted(read_plan(folder).payments, key=lambda one: one.amount))
    put_back(money, money / "older")
    with Database.open(RunFolder(money).database) as database:
        payout_hold.hold(database, LATER)
    shutil.move(folder, money / "moved")
    shown = "\n".join(payout_commands.record_restoration(money, "compared", do=False))
    assert f"payment {alice} may have gone out" in shown
    assert f"payment {bob} may have gone out" in shown
    shutil.copytree(money / "moved", money / "payouts" / "of plan 1")
    (money / "payouts" / "of plan 1" / "approval").unlink()
    with pytest.raises(LocalFault, match=f"payment {bob}, 50.00 USD to {BOB}, may have gone out") as caught:
        payout_commands.record_restoration(money, "compared", do=True)
    assert f"payment {alice}, 12.34 USD to {ALICE}, may have gone out" in str(caught.value)
    write_payees(money, {ALICE: "alice@example.org", BOB: ""})
    with pytest.raises(LocalFault, match=f"payment {alice}, ") as caught:
        payout_commands.record_restoration(money, "compared", do=True)
    assert bob not in str(caught.value)
    done = payout_commands.record_restoration(money, f"{alice} never left: the file was not uploaded", do=True)
    assert done == ["recorded: payments may be planned and sent again"]
    lines = await payout_commands.plan(money, clock, do=False)
    assert "payments    1, together 12.34 USD" in lines
    assert any("you withhold its pay" in line for line in lines)


async def test_a_payment_that_came_back_is_none_that_a_restored_ledger_must_have(money: Path) -> None:
    shutil.copy2(RunFolder(money).database, money / "older")
    folder = await planned(money)
    approve(money, folder)
    await payout_commands.send(money, clock, do=True)
    keys_ = [one.payment.hex() for one in read_plan(folder).payments]
    rows = [f"{key},returned,{amount},x" for key, amount in zip(keys_, amounts(folder), strict=True)]
    (money / "payouts" / "csv" / "results.csv").write_text("\n".join(["key,outcome,amount,reference", *rows]) + "\n")
    await payout_commands.reconcile(money, clock, do=True)
    put_back(money, money / "older")
    with Database.open(RunFolder(money).database) as database:
        payout_hold.hold(database, LATER)
    shutil.move(folder, money / "moved")
    assert payout_commands.record_restoration(money, "compared", do=True) == [
        "recorded: payments may be planned and sent again"
    ]


def test_a_restored_run_may_name_any_number_of_payments_that_never_left(money: Path) -> None:
    with Database.open(RunFolder(money).database) as database:
        payout_hold.hold(database, LATER)
    keys_ = [f"{number:064x}" for number in range(1, 20)]
    (money / "payouts").mkdir(exist_ok=True)
    answers = "".join(json.dumps({"key": key, "word": "taken"}) + "\n" for key in keys_)
    (money / "payouts" / "answers.jsonl").write_text(answers)
    why = "the bank refused the file: " + " ".join(keys_)
    with pytest.raises(LocalFault, match="besides the keys of payments"):
        payout_commands.record_restoration(money, why + "x" * payout_commands.MOST_WHY, do=True)
    with pytest.raises(LocalFault, match=f"payment {keys_[-1]} may have gone out"):
        payout_commands.record_restoration(money, why.removesuffix(keys_[-1]), do=True)
    done = payout_commands.record_restoration(money, why, do=True)
    assert done == ["recorded: payments may be planned and sent again"]


def amounts(folder: Path) -> list[str]:
    return [f"{one.amount / 10**9:.2f}" for one in read_plan(folder).payments]


async def test_a_plan_whose_entry_a_crash_prevented_is_planned_again(money: Path) -> None:
    folder = await planned(money)
    shutil.copytree(folder, money / "payouts" / "2")
    await payout_commands.plan(money, clock, do=True)
    assert read_plan(money / "payouts" / "2").plan == 2


async def test_two_commands_do_not_work_in_one_folder(money: Path) -> None:
    from echo2.runtime.lock import lock_folder

    with lock_folder(money / "payouts"), pytest.raises(LocalFault, match="another `echo2-coord payout`"):
        await payout_commands.plan(money, clock, do=True)


@pytest.mark.slow
def test_the_commands(money: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_options, "now", clock)
    at = ["--home", str(money)]

    def called(*words: str) -> str:
        done = CliRunner().invoke(cli.app, ["payout", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "--yes" in called("plan", *at)
    called("plan", *at, "--yes")
    called("approve", str(money / "payouts" / "1"), "--keys", str(money.parent / "safe"), "--yes")
    assert "nothing forbids it" in called("send", *at)
    assert "sent        2" in called("send", *at, "--yes")
    key = called("report", *at).split("open        ")[1].split(",")[0]
    assert "2 payments would be asked" in called("reconcile", *at)
    assert "is sent" in called("reconcile", *at, "--cancel", key)
    assert "taken" in called("reconcile", *at, "--cancel", key, "--yes")
    called("reconcile", *at, "--settle", f"{key}=returned", "--why", "never uploaded", "--yes")
    assert "returned    1 payment," in called("report", *at)
    done = CliRunner().invoke(cli.app, ["payout", "reconcile", *at, "--cancel", key, "--settle", "x"])
    assert done.exit_code == Exit.CONFIG


def test_the_golden_approval(money: Path) -> None:
    vector = json.loads((paths.VECTORS / "payouts.json").read_text())
    plan = payout_commands.plan_files.PlanFile(
        run=b"r" * 32, plan=1, rail="https", currency="USD", head=7, head_hash=b"h" * 32,
        payments=[payout_commands.payout_plan.PlannedPayment(b"i" * 16, "n", 500 * UNITS_PER_HUNDREDTH, b"a" * 32)],
    )  # fmt: skip
    assert plan.as_bytes().hex() == vector["plan"]
    assert plan.approval().hex() == vector["approval"]
    assert decode(plan.approval(), PayoutApproval).file == hashlib.sha256(plan.as_bytes()).digest()


def test_facts_that_a_command_sends_are_checked() -> None:
    for kind, facts in (
        ("payout.sent", "zz"),
        ("payout.sent", "80"),
        ("lease.accepted", "80"),
        ("payout.planned", "c1"),
    ):
        with pytest.raises(LocalFault, match="this is no"):
            payout_book.decode_facts(kind, facts)
