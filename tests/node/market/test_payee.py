"""The account that a node is paid to: checked, told, in force a day later, and known with its salt to its owner."""

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest

from echo2.node.control import payout_orders
from echo2.node.errors import BadConfig
from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.market import payee_file
from echo2.node.market.payee_file import FILE, PayeeRecord
from echo2.node.market.payee_keeper import BadAccountText, PayeeKeeper
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.errors import Unreachable
from echo2.protocol.market import MovingBalance, PayeeRequest, PayeeResponse
from echo2.protocol.payee_accounts import MOST_ACCOUNT_CHARACTERS, account_fault, account_hash
from echo2.protocol.requests import Refusal
from echo2.runtime.units import DAY
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import START, FakeCoordinator
from tests.support.small_run import SmallRun
from tests.support.swarm import working

ME, YOU = "alice@example.org", "bob@example.org"


class Payer:
    """A run that takes accounts, each in force a day later. `asked`: the requests. `down`: raised instead."""

    def __init__(self) -> None:
        self.now, self.asked = START, list[PayeeRequest]()
        self.named: list[tuple[int, bytes]] = []
        self.down: Exception | None = None

    def answer(self, node: str, request: PayeeRequest) -> PayeeResponse:
        self.asked.append(request)
        if self.down is not None:
            raise self.down
        salt = b""
        if request.account is not None:
            salt = bytes([len(self.named)]) * 16
            self.named.append((self.now + DAY, account_hash(request.account, salt)))
        in_force = [one for since, one in self.named if since <= self.now]
        coming = [(since, one) for since, one in self.named if since > self.now]
        return PayeeResponse(
            rail="bank", currency="USD", commitment=in_force[-1] if in_force else None,
            coming=coming[-1][1] if coming else None, since=coming[-1][0] if coming else None, salt=salt,
            minimum=5_000_000_000, fee=250_000_000,
        )  # fmt: skip


class Teller:
    """A node's keeper beside a payer."""

    def __init__(self, folder: Path) -> None:
        self.payer, self.folder = Payer(), folder
        context: Any = SimpleNamespace(folder=folder, seed=1, clock=SimpleNamespace(now=lambda: self.payer.now))
        runspec = SimpleNamespace(value=SimpleNamespace(currency="USD"))
        context.trust_store = SimpleNamespace(trusted=SimpleNamespace(runspec=runspec))
        self.keeper = PayeeKeeper(context, self._call)

    async def _call(self, request: PayeeRequest) -> PayeeResponse:
        return self.payer.answer("me", request)


async def test_an_account_counts_a_day_later_and_the_one_before_until_then(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    first = (await teller.keeper.name(ME)).lines()
    assert first == [
        "in force: no account",
        f"from 2023-11-15 22:13 UTC on: {ME}; until then the one in force is paid",
        "payments by bank; least payment 5.00 USD, fee of the payee 0.25 USD",
    ]
    teller.payer.now += DAY
    assert (await teller.keeper.name(None)).lines()[0] == f"in force: {ME}"
    second = (await teller.keeper.name(YOU)).lines()
    assert second[0] == f"in force: {ME}"
    assert YOU in second[1]


async def test_balances_of_the_key_before_are_told_with_their_time(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    honest = teller.payer.answer
    moving = [
        MovingBalance(node="12D3KooWold", amount=1_250_000_000, at=START + 3 * DAY),
        MovingBalance(node="12D3KooWolder", amount=7, at=START, disputed=True),
    ]
    teller.payer.answer = lambda node, request: msgspec.structs.replace(honest(node, request), moving=moving)  # type: ignore[method-assign]
    rows = (await teller.keeper.name(None)).lines()
    assert rows[1] == "1.25 USD of the key before, 12D3KooWold, move here at 2023-11-17 22:13 UTC"
    assert rows[2].endswith("of the key before, 12D3KooWolder, stay with it: its replacement is disputed")
    assert payee_file.read(tmp_path).told is not None


async def test_the_account_and_its_salt_lie_in_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    record = await teller.keeper.name(ME)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (one,) = payee_file.read(tmp_path).named
    assert record.named == [one]
    assert hashlib.sha256(bytes.fromhex(one.salt) + ME.encode()).digest() == teller.payer.named[0][1]


async def test_an_account_that_another_home_named_is_said(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    await teller.keeper.name(ME)
    teller.payer.answer("a thief", PayeeRequest(account=YOU))
    rows = (await teller.keeper.name(None)).lines()
    assert "an account that this home did not name (commitment " in rows[1]


@on_fake_clock
async def test_an_account_that_another_home_names_later_is_noticed_within_the_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teller = Teller(tmp_path)
    await teller.keeper.name(ME)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(teller.keeper.learn)
        await anyio.sleep(10)
        assert teller.keeper.warning == ""
        teller.payer.answer("a thief", PayeeRequest(account=YOU))
        await anyio.sleep(3 * 3600)
        assert "to an account that this home did not name (commitment " in teller.keeper.warning
        assert "somebody else has its key" in teller.keeper.warning
        assert capsys.readouterr().out.count("somebody else has its key") == 1
        teller.payer.now += 2 * DAY
        await anyio.sleep(3600)
        assert teller.keeper.warning.startswith("the pay of this node goes to an account that this home did not name")
        await teller.keeper.name(ME)
        teller.payer.now += DAY
        await anyio.sleep(3600)
        assert teller.keeper.warning == ""
        tasks.cancel_scope.cancel()


async def test_a_commitment_to_something_else_is_not_believed(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    honest = teller.payer.answer
    teller.payer.answer = lambda node, request: honest(node, PayeeRequest(account=YOU))  # type: ignore[method-assign]
    with pytest.raises(BadConfig, match="took another account"):
        await teller.keeper.name(ME)
    assert payee_file.read(tmp_path).named == []


BAD_ACCOUNTS = {
    "nothing": "",
    "10 kB": "x" * 10_240,
    "a control character": "alice\x1b[31m",
    "a new line": "alice\nbob",
    "a blank before": " alice",
    "a formula": "=1+1",
    "a formula that begins with an at": "@SUM(A1)",
    "a negative number": "-5",
}


@pytest.mark.parametrize("case", BAD_ACCOUNTS)
async def test_a_bad_account_is_refused_before_anything_is_sent_or_stored(tmp_path: Path, case: str) -> None:
    teller = Teller(tmp_path)
    with pytest.raises(BadAccountText) as refused:
        await teller.keeper.name(BAD_ACCOUNTS[case])
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300
    assert (teller.payer.asked, payee_file.read(tmp_path)) == ([], PayeeRecord())
    assert account_fault("x" * MOST_ACCOUNT_CHARACTERS) == ""


@on_fake_clock
async def test_an_account_that_waits_is_told_once_the_run_answers(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    payee_file.write(tmp_path, PayeeRecord(wanted=ME))
    teller.payer.down = Unreachable("no route")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(teller.keeper.run)
        await anyio.sleep(3600)
        assert 10 < len(teller.payer.asked) < 30
        teller.payer.down = None
        await anyio.sleep(600)
        assert (payee_file.read(tmp_path).wanted, len(teller.payer.named)) == (None, 1)
        await anyio.sleep(80_000)
        assert len(teller.payer.named) == 1
        tasks.cancel_scope.cancel()


@on_fake_clock
async def test_an_account_that_the_run_does_not_take_yet_is_told_every_hour_until_it_does(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    no = Refusal(code="payee", sentence="The account is not taken: a node states one once a group was accepted.")
    teller.payer.down = RequestRefused(no)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(teller.keeper.run)
        await anyio.sleep(1)
        rows = (await teller.keeper.name(ME)).lines()
        assert rows == [f"{ME} is not taken yet: {no.sentence} The node tries again every hour"]
        await anyio.sleep(5 * 3600 - 10)
        assert len(teller.payer.asked) == 5
        teller.payer.down = None
        await anyio.sleep(3600)
        assert payee_file.read(tmp_path).wanted is None
        assert [one.account for one in payee_file.read(tmp_path).named] == [ME]
        tasks.cancel_scope.cancel()


@on_fake_clock
async def test_another_account_takes_the_place_of_one_that_waits(tmp_path: Path) -> None:
    teller = Teller(tmp_path)
    payee_file.write(tmp_path, PayeeRecord(wanted=ME, refused="no such account."))
    assert YOU in (await teller.keeper.name(YOU)).lines()[1]
    assert payee_file.read(tmp_path).wanted is None


def test_a_damaged_file_is_named_and_stays(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(BadConfig, match="move it away"):
        payee_file.read(tmp_path)
    assert (tmp_path / FILE).read_text() == "{"


def home_of(folder: Path, **spec: Any) -> Path:
    """Return the home of a node that joined a run, without a daemon."""
    coordinator, home = FakeCoordinator(folder / "run"), folder / "home"
    home.mkdir()
    invite = coordinator.invite()
    (home / "invite").write_text(invite.to_text())
    store = TrustStore(home / "runs" / invite.run.hex()[:16] / "trust", invite.run, invite.root_hash, START)
    store.update_roots(coordinator.roots, START)
    store.update_runspec(coordinator.sealed_runspec(**spec))
    return home


def test_without_a_daemon_the_account_waits_for_the_next_one(tmp_path: Path) -> None:
    home = home_of(tmp_path, price_mode="market", currency="USD")
    rows = payout_orders.name(home, ME)
    waits = f"{ME} waits until the node has told it to the run"
    assert rows == ["no node runs here: the next one that starts tells the run", waits]
    assert payout_orders.describe_payee(home)[1:] == [waits]
    with pytest.raises(BadAccountText):
        payout_orders.name(home, "=1+1")


def test_a_run_of_points_needs_no_account(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="pays points"):
        payout_orders.name(home_of(tmp_path), ME)


@on_fake_clock
async def test_a_daemon_tells_the_account_and_shows_it(small_run: SmallRun) -> None:
    payer = Payer()
    small_run.coordinator.on_payee = payer.answer
    async with small_run.serving():
        node = small_run.node()
        async with working(node):
            answer = await node.daemon.commands.payee({"account": ME})
            assert ME in answer["payee"][1]
            shown = await node.daemon.commands.payee({"account": None})
            assert shown == answer
            with pytest.raises(BadAccountText, match="begins as a formula does"):
                await node.daemon.commands.payee({"account": "=1"})
            with pytest.raises(BadConfig, match="must be a text"):
                await node.daemon.commands.payee({"account": 7})
    assert [request.account for request in payer.asked] == [ME, None]
