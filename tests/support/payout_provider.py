"""A payout provider in this process, with faults by a seed: what it truly moved is in `transfers`."""

import asyncio
import datetime
import ipaddress
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from echo2_rails.https_rail import NoReply, Reply

DAY = 24 * 3600 * 1000
FAULTS = ("lost-before", "lost-after", "again", "stale", "429", "500", "503-after", "pending", "refused")
ENDS = ("other-amount", "returned-late", "silent")


@dataclass
class Transfer:
    """A payment at the provider. `moved`: what it moved. `state`, `amount`: what it says. `at`: ms."""

    account: str
    moved: int
    at: int
    state: str = "done"
    amount: int = 0
    pending_until: int = 0
    returns_at: int = 1 << 60


@dataclass
class Provider:
    """`rate`: the share of calls with a fault. `ends`: the share of payments with each strange end."""

    chance: random.Random
    clock: Callable[[], int]
    rate: float = 0.0
    ends: float = 0.0
    transfers: dict[str, Transfer] = field(default_factory=dict)
    moves: Counter[str] = field(default_factory=Counter)
    refusals: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    strange: Counter[str] = field(default_factory=Counter)
    last: bytes = b'{"state":"done","amount":1,"key":"none"}'

    async def __call__(self, method: str, path: str, key: str | None, body: bytes | None) -> Reply:
        await asyncio.sleep(0)
        fault = self.chance.choice(FAULTS) if self.chance.random() < self.rate else ""
        self.calls[fault or "clean"] += 1
        if fault == "lost-before":
            raise NoReply("timed out")
        if fault == "429":
            return Reply(429, b"{}", "7")
        if fault == "500":
            return Reply(500, b"oops")
        reply = self.answer(method, path, key, body, fault)
        if fault == "again":
            reply = self.answer(method, path, key, body, "")
        if fault == "lost-after":
            raise NoReply("timed out")
        if fault == "503-after":
            return Reply(503, b"oops")
        stale, self.last = self.last, reply.body
        return Reply(200, stale) if fault == "stale" else reply

    def answer(self, method: str, path: str, key: str | None, body: bytes | None, fault: str) -> Reply:
        """Answer one request. `fault`: that it has; empty: none."""
        if path == "/quotes":
            return Reply(200, b'{"fee":25}')
        if path == "/payouts":
            assert key is not None
            assert body is not None
            return self._sent(key, msgspec.json.decode(body), fault)
        named = path.split("/")[2]
        if path.endswith("/cancel") and named in self.transfers and self.transfers[named].pending_until > self.clock():
            self.transfers[named].state = "returned"
        return self._told(named)

    def _sent(self, key: str, asked: dict[str, object], fault: str) -> Reply:
        account, amount = asked["account"], asked["amount"]
        assert isinstance(account, str)
        assert isinstance(amount, int)
        assert asked["key"] == key
        if key not in self.transfers and (key in self.refusals or fault == "refused"):
            self.refusals.add(key)
            return Reply(422, b'{"state":"refused","why":"account closed"}')
        if key not in self.transfers:
            now = self.clock()
            made = self.transfers[key] = Transfer(account, amount, now, amount=amount)
            self.moves[key] += 1
            made.pending_until = now + 3600_000 if fault == "pending" else 0
            self._ends(made)
        return self._told(key)

    def _ends(self, made: Transfer) -> None:
        end = self.chance.choice(ENDS) if self.chance.random() < self.ends else ""
        self.strange[end] += 1
        if end == "other-amount":
            made.amount += 1
        if end == "returned-late":
            made.returns_at = self.clock() + 3 * DAY
        if end == "silent":
            made.pending_until = 1 << 60

    def _told(self, key: str) -> Reply:
        made = self.transfers.get(key)
        if made is None:
            return Reply(404, b'{"state":"absent"}')
        state = "taken" if self.clock() < made.pending_until and made.state == "done" else made.state
        state = "returned" if self.clock() >= made.returns_at else state
        told = {"state": state, "key": key, "amount": made.amount, "reference": f"tr_{key[:6]}"}
        return Reply(202 if state == "taken" else 200, msgspec.json.encode(told))


def trusted_certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a server on 127.0.0.1 and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "payouts")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "server.crt", folder / "server.pem"
    pem.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, private)
    client = ssl.create_default_context(cafile=str(pem))
    return server, client


@asynccontextmanager
async def served(handler: Callable[[web.Request], web.StreamResponse], tls: ssl.SSLContext) -> AsyncIterator[str]:
    """Serve requests over TLS on loopback; yield the base address."""

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()
        return handler(request)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"https://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()
