"""A payout provider over real TLS: what is sent to it, and what each reply means."""

import json
import random
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.runtime.errors import LocalFault
from echo2_rails.https_rail import HttpsRail, NoReply, Reply, base_of, connect_provider, read_token
from tests.support.payout_provider import Provider, served, trusted_certificate

KEY = "ab" * 16


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret-token\n")
    path.chmod(0o600)
    return path


async def test_a_payment_carries_its_key_the_token_and_integers(tmp_path: Path, token: Path) -> None:
    seen: list[tuple[str, str, dict[str, str], bytes]] = []

    def handler(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.path, dict(request.headers), request._read_bytes or b""))
        if request.path.endswith("/quotes"):
            return web.json_response({"fee": 25})
        return web.json_response({"state": "done", "amount": 1234, "reference": "tr_1"})

    server, client = trusted_certificate(tmp_path)
    async with served(handler, server) as url, connect_provider(url, token, client) as exchange:
        rail = HttpsRail(exchange, "USD")
        assert await rail.quote("alice", 1234) == Quote(25)
        assert await rail.send(KEY, "alice", 1234) == RailAnswer("done", 1234, reference="tr_1")
        assert await rail.status(KEY) == RailAnswer("done", 1234, reference="tr_1")
        assert await rail.cancel(KEY) == RailAnswer("done", 1234, reference="tr_1")
    assert [(method, path) for method, path, _, _ in seen] == [
        ("POST", "/v1/quotes"), ("POST", "/v1/payouts"), ("GET", f"/v1/payouts/{KEY}"),
        ("POST", f"/v1/payouts/{KEY}/cancel"),
    ]  # fmt: skip
    assert json.loads(seen[1][3]) == {"key": KEY, "account": "alice", "amount": 1234, "currency": "USD"}
    assert [headers.get("Idempotency-Key") for _, _, headers, _ in seen] == [None, KEY, None, KEY]
    assert {headers["Authorization"] for _, _, headers, _ in seen} == {"Bearer secret-token"}


async def test_no_redirect_is_followed(tmp_path: Path, token: Path) -> None:
    paths: list[str] = []

    def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    server, client = trusted_certificate(tmp_path)
    async with served(handler, server) as url, connect_provider(url, token, client) as exchange:
        answer = await HttpsRail(exchange, "USD").send(KEY, "alice", 1)
    assert answer.word == "unknown"
    assert "307" in answer.why
    assert paths == ["/v1/payouts"]


async def test_a_certificate_that_no_authority_signed_gets_no_byte(tmp_path: Path, token: Path) -> None:
    paths: list[str] = []

    def handler(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        return web.json_response({"state": "done", "amount": 1})

    server, _ = trusted_certificate(tmp_path)
    async with served(handler, server) as url, connect_provider(url, token) as exchange:
        answer = await HttpsRail(exchange, "USD").send(KEY, "alice", 1)
    assert answer.word == "unknown"
    assert "certificate" in answer.why.lower()
    assert paths == []
    assert ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED


async def test_a_slow_provider_is_unknown(tmp_path: Path, token: Path) -> None:
    def handler(request: web.Request) -> web.StreamResponse:
        request.transport.abort()
        return web.Response()

    server, client = trusted_certificate(tmp_path)
    async with served(handler, server) as url, connect_provider(url, token, client, patience=2) as exchange:
        assert (await HttpsRail(exchange, "USD").send(KEY, "alice", 1)).word == "unknown"


ABSENT = b'{"state":"absent"}'
REPLIES = {
    "done": (Reply(200, b'{"state":"done","amount":5}'), RailAnswer("done", 5), RailAnswer("done", 5)),
    "taken": (Reply(202, b'{"state":"taken"}'), RailAnswer("taken"), RailAnswer("taken")),
    "slow down": (Reply(429, b"", "9"), RailAnswer("busy", wait=9.0), RailAnswer("busy", wait=9.0)),
    "a wild Retry-After": (Reply(429, b"", "1e9"), RailAnswer("busy"), RailAnswer("busy")),
    "a long Retry-After": (Reply(429, b"", "999999"), RailAnswer("busy", wait=3600.0), RailAnswer("busy", wait=3600.0)),
    "wrong credentials": (Reply(401, b""), RailAnswer("busy"), RailAnswer("busy")),
    "no such payment": (Reply(404, ABSENT), RailAnswer("refused"), RailAnswer("absent")),
    "no such address": (Reply(404, b"<html>"), RailAnswer("refused"), RailAnswer("unknown")),
    "a closed account": (Reply(422, b"{}"), RailAnswer("refused"), RailAnswer("unknown")),
    "the key is in use": (Reply(409, b"{}"), RailAnswer("unknown"), RailAnswer("unknown")),
    "a broken server": (Reply(502, b"<html>"), RailAnswer("unknown"), RailAnswer("unknown")),
    "a fraction": (Reply(200, b'{"state":"done","amount":5.0}'), RailAnswer("unknown"), RailAnswer("unknown")),
    "70 kB": (Reply(200, b" " * 70_000), RailAnswer("unknown"), RailAnswer("unknown")),
    "deep JSON": (Reply(200, b"[" * 60_000), RailAnswer("unknown"), RailAnswer("unknown")),
}


@pytest.mark.parametrize(("reply", "sent", "status"), REPLIES.values(), ids=REPLIES.keys())
async def test_what_each_reply_means(reply: Reply, sent: RailAnswer, status: RailAnswer) -> None:
    async def exchange(method: str, path: str, key: str | None, body: bytes | None) -> Reply:
        return reply

    rail = HttpsRail(exchange, "USD")
    assert (await rail.send(KEY, "alice", 5))._replace(why="") == sent
    assert (await rail.status(KEY))._replace(why="") == status


async def test_a_lost_reply_is_unknown_and_a_lost_quote_is_said() -> None:
    async def exchange(method: str, path: str, key: str | None, body: bytes | None) -> Reply:
        raise NoReply("timed out")

    rail = HttpsRail(exchange, "USD")
    assert (await rail.send(KEY, "alice", 5)).word == "unknown"
    with pytest.raises(LocalFault, match="no quote"):
        await rail.quote("alice", 5)


async def test_the_simulated_provider_moves_money_once_per_key() -> None:
    provider = Provider(random.Random(1), lambda: 0)
    rail = HttpsRail(provider, "USD")
    for _ in range(3):
        assert (await rail.send(KEY, "alice", 5)).word == "done"
    assert provider.moves == {KEY: 1}


BAD_URLS = ["http://x.example", "https://", "https://u:p@x.example", "https://x.example/?a=1", "https://x.example/#a",
            "https://x.example:0", "https://x.example:99999", "ftp://x", "", "https://x.example/\n",
            "https://[x"]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_is_not_plain_https_is_refused(url: str) -> None:
    with pytest.raises(LocalFault, match=r"payout\.url"):
        base_of(url)


def test_the_token_is_a_file_of_its_owner_alone(tmp_path: Path, token: Path) -> None:
    assert read_token(token) == "secret-token"
    token.chmod(0o640)
    with pytest.raises(LocalFault, match="chmod 600"):
        read_token(token)
    token.chmod(0o600)
    for text in ("", "two words", "a\nb", "x" * 5000, "\xff"):
        token.write_text(text)
        with pytest.raises(LocalFault, match="one token") as caught:
            read_token(token)
        assert "two words" not in str(caught.value)
    with pytest.raises(LocalFault, match="cannot read"):
        read_token(tmp_path / "missing")
