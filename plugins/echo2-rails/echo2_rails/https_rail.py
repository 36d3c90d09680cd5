"""A payout provider over HTTPS, behind the same four methods.

    POST  BASE/quotes                {account, amount, currency}        -> {fee}
    POST  BASE/payouts               {key, account, amount, currency}   -> {state, amount, reference, why}
    GET   BASE/payouts/KEY                                              -> the same
    POST  BASE/payouts/KEY/cancel                                       -> the same

Rules
1. Every POST about a payment names the key in `Idempotency-Key`. Amounts are integers in minor units.
2. The host comes from payout.url alone: https, without a user, query or fragment. No redirect is followed, whatever it
   names, and no proxy of the environment is used. Certificates are verified.
3. The credentials are a bearer token in a file of mode 0600 that this user owns. No log and no message names them.
4. A 2xx answer is read by coordinator/rails/provider_words.py. 404 to a GET is
   `absent` if its body says so, as a wrong address has a 404 as well. 429 is `busy`, with `Retry-After`; 401 and 403
   are `busy`, too: nothing was taken, and the next payment would fare the same. 409 is `unknown`, so the status
   decides; any other 4xx to `send` is `refused`. All else, and no answer, is `unknown`.
"""

import os
import re
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from echo2.coordinator.rails import account_text, provider_words
from echo2.coordinator.rails.provider_words import MOST_BYTES, unknown
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.errors import LocalFault

CALL_SECONDS: Final = 30.0
"""Seconds for one call."""
MOST_WAIT: Final = 3600
"""Seconds: most of a `Retry-After` that is believed."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,4096}")


class Reply(NamedTuple):
    """The reply of a server. `body`: body at most one byte more than is read."""

    status: int
    body: bytes
    retry_after: str = ""


class NoReply(Exception):
    """No reply came: the request may have been taken all the same."""


class Exchange(Protocol):
    """One request to the provider, and its reply. Raises `NoReply`."""

    async def __call__(self, method: str, path: str, key: str | None, body: bytes | None) -> Reply: ...


class HttpsRail:
    """A rail of a provider that is reached by `exchange`."""

    def __init__(self, exchange: Exchange, currency: str) -> None:
        self._exchange, self._currency = exchange, currency

    async def quote(self, account: str, amount: int) -> Quote:
        """Return the provider's fee. Raises `BadAccount`, and `LocalFault` where none can be had."""
        account_text.check(account)
        body = msgspec.json.encode({"account": account, "amount": amount, "currency": self._currency})
        try:
            reply = await self._exchange("POST", "/quotes", None, body)
        except NoReply as error:
            raise LocalFault(f"the payout provider gave no quote: {error}") from error
        fee = provider_words.fee(reply.body) if reply.status == 200 else None
        if fee is None:
            raise LocalFault(f"the payout provider gave no quote: status {reply.status}, or a fee that is no integer")
        return Quote(fee)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        """Have the provider pay. Raises `BadAccount`."""
        account_text.check(account)
        facts = {"key": idempotency_key, "account": account, "amount": amount, "currency": self._currency}
        return await self._ask("POST", "/payouts", idempotency_key, msgspec.json.encode(facts), sends=True)

    async def status(self, idempotency_key: str) -> RailAnswer:
        """Ask the provider what became of a payment."""
        return await self._ask("GET", f"/payouts/{idempotency_key}", idempotency_key, None)

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        """Have the provider stop a payment, if it can."""
        return await self._ask("POST", f"/payouts/{idempotency_key}/cancel", idempotency_key, b"{}")

    async def _ask(self, method: str, path: str, key: str, body: bytes | None, *, sends: bool = False) -> RailAnswer:
        try:
            reply = await self._exchange(method, path, None if method == "GET" else key, body)
        except NoReply as error:
            return unknown(f"no reply of the payout provider: {error}")
        if 200 <= reply.status < 300:
            return provider_words.answer(reply.body, key)
        if reply.status in (401, 403):
            return RailAnswer("busy", why=f"the payout provider refuses the credentials (status {reply.status})")
        if reply.status == 429:
            return RailAnswer(
                "busy", why="the payout provider asks to slow down (429)", wait=_seconds(reply.retry_after)
            )
        if reply.status == 404 and method == "GET" and provider_words.answer(reply.body, key).word == "absent":
            return RailAnswer("absent")
        if sends and 400 <= reply.status < 500 and reply.status not in (408, 409, 425):
            return RailAnswer("refused", why=f"the payout provider refuses the payment (status {reply.status})")
        return unknown(f"the payout provider replied with status {reply.status}")


def _seconds(text: str) -> float | None:
    return float(min(int(text), MOST_WAIT)) if re.fullmatch(r"[0-9]{1,9}", text) else None


def base_of(url: str) -> str:
    """Return the base of the provider's addresses (rule 2). Raises `LocalFault`."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme == "https" and parts.hostname and parts.username is None and parts.password is None
        sound = sound and not parts.query and not parts.fragment and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise LocalFault(f"payout.url {url[:200]!r} should be as https://payouts.example/v1, with nothing behind it")
    return url.rstrip("/")


def read_token(path: Path) -> str:
    """Return the token in a file of mode 0600 (rule 3). Raises `LocalFault`."""
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(8192)
    except OSError as error:
        raise LocalFault(f"cannot read payout.credentials {path}: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
        raise LocalFault(f"payout.credentials {path} must be a file of this user alone: `chmod 600` it")
    text = data.decode("ascii", errors="replace").strip()
    if not _TOKEN.fullmatch(text):
        raise LocalFault(f"payout.credentials {path} should contain one token of visible ASCII characters")
    return text


@asynccontextmanager
async def connect_provider(
    url: str, credentials: Path, tls: ssl.SSLContext | None = None, patience: float = CALL_SECONDS
) -> AsyncIterator[Exchange]:
    """Yield the exchange with a provider (rules 2 and 3). `tls`: None: the system's authorities. Raises
    `LocalFault`."""
    base, token = base_of(url), read_token(credentials)
    timeout = aiohttp.ClientTimeout(total=patience)
    connector = aiohttp.TCPConnector(ssl=tls or ssl.create_default_context(), limit=1)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def exchange(method: str, path: str, key: str | None, body: bytes | None) -> Reply:
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
            headers |= {} if key is None else {"Idempotency-Key": key}
            headers |= {} if body is None else {"Content-Type": "application/json"}
            try:
                async with session.request(
                    method, base + path, data=body, headers=headers, allow_redirects=False
                ) as response:
                    data = await _read(response.content)
                    return Reply(response.status, data, response.headers.get("Retry-After", ""))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise NoReply(str(error) or type(error).__name__) from error

        yield exchange


async def _read(content: aiohttp.StreamReader) -> bytes:
    """Return at most one byte more than `MOST_BYTES` of a body."""
    data = bytearray()
    while len(data) <= MOST_BYTES and (chunk := await content.read(MOST_BYTES + 1 - len(data))):
        data += chunk
    return bytes(data)


@asynccontextmanager
async def _connect(settings: PayoutSection) -> AsyncIterator[HttpsRail]:
    async with connect_provider(settings.url, Path(settings.credentials)) as exchange:
        yield HttpsRail(exchange, settings.currency)


HTTPS_RAIL: Final = RailKind(
    connect=_connect,
    needs={
        "url": "the provider's address, as in https://payouts.example/v1",
        "credentials": "the path of a file of mode 0600 with its bearer token",
    },
    target=lambda settings: settings.url.rstrip("/"),
    check=lambda settings: base_of(settings.url),
    check_here=lambda settings: read_token(Path(settings.credentials)),
)
