"""The whole way over HTTPS: plan, approval, a real TLS connection to a provider, and what it says later."""

import random
from pathlib import Path

import pytest
from aiohttp import web

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.payouts import payout_approvals, payout_commands
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, paid_account
from echo2.runtime.errors import LocalFault
from tests.support.payout_provider import Provider, served, trusted_certificate
from tests.support.payout_world import LATER, add_money, add_payout_role, node, set_payout, write_payees

ALICE, BOB = node(1), node(2)
DAY = 24 * 3600_000


class Served:
    """A provider behind a server. `now`: ms. `down`: whether each request fails, after it was carried out."""

    def __init__(self) -> None:
        self.now = LATER
        self.down = False
        self.provider = Provider(random.Random(0), lambda: self.now)

    def __call__(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret-token"
        path = request.path.removeprefix("/v1")
        key = request.headers.get("Idempotency-Key")
        reply = self.provider.answer(request.method, path, key, request._read_bytes, "")
        if self.down:
            return web.Response(status=503)
        return web.Response(status=reply.status, body=reply.body, content_type="application/json")


async def test_from_a_balance_to_a_provider_that_fails_and_back(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    write_token(token)
    server, _ = trusted_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.crt"))
    add_payout_role(home, tmp_path / "safe")
    add_money(home, {ALICE: 1234, BOB: 5000})
    write_payees(home, {ALICE: "acct_alice", BOB: "acct_bob"})
    there = Served()

    def clock() -> int:
        return there.now

    async with served(there, server) as url:
        set_payout(home, rail="https", url=url, credentials=str(token), minimum=100)
        lines = await payout_commands.plan(home, clock, do=True)
        assert "fee         0.25 for the largest payment, on top" in lines
        payout_approvals.approve(home / "payouts" / "1", tmp_path / "safe", None, do=True)
        there.down = True
        lines = await payout_commands.send(home, clock, do=True)
        assert "final       0 confirmed, 0 returned; 2 without a final answer yet" in lines
        assert any("503" in line for line in lines)
        there.down = False
        lines = await payout_commands.reconcile(home, clock, do=True)
        assert "final       2 confirmed, 0 returned; 0 without a final answer yet" in lines
        assert sorted(one.moved for one in there.provider.transfers.values()) == [1234, 5000]
        assert set(there.provider.moves.values()) == {1}
        for one in there.provider.transfers.values():
            one.returns_at = there.now + 3 * DAY if one.account == "acct_bob" else one.returns_at
        there.now += 4 * DAY
        lines = await payout_commands.reconcile(home, clock, do=True)
        assert "final       0 confirmed, 1 returned; 0 without a final answer yet" in lines
        with Database.read(RunFolder(home).database) as database:
            assert Ledger(database).balance(paid_account("https")) == 1234 * UNITS_PER_HUNDREDTH
        set_payout(home, rail="https", url=url + "/other", credentials=str(token), minimum=100)
        lines = await payout_commands.reconcile(home, clock, do=True)
        assert any("2 payments of another provider" in line for line in lines)
        token.chmod(0o644)
        with pytest.raises(LocalFault, match="chmod 600"):
            await payout_commands.reconcile(home, clock, do=True)
    assert "secret-token" not in read_all(home / "payouts")


def write_token(path: Path) -> None:
    path.write_text("secret-token\n")
    path.chmod(0o600)


def read_all(folder: Path) -> str:
    """Return the text of every file below a folder."""
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())
