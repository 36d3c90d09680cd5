"""A payout provider on loopback for `echo2-coord demo --pay`, which fails as real ones do and moves no money.

    python -m benchmarks.payments.trial_provider FOLDER

Rules
1. It speaks the contract of docs/money.md (`A provider over HTTPS`), by TLS under an authority of its own, and wants
   the bearer token that is in FOLDER/token. It writes FOLDER/authority.pem, and then its address into FOLDER/url.
2. The calls about a payment go wrong by a row of `FAULTS`: the first payment by the first row, and so on.
3. It moves money once per key, and says again what it did where a key comes again.
4. FOLDER/record.jsonl has a JSON object per call, transfer and return, written before the answer.
"""

import asyncio
import datetime
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from aiohttp import web

from benchmarks.payments.trial_authority import HOST, make_authority
from echo2.runtime.files import writing

RECORD: Final = "record.jsonl"
URL: Final = "url"
TOKEN: Final = "token"
FEE: Final = 25

Fault = Literal["", "busy", "broken", "unsure", "lost", "twice", "pending", "returned"]
"""busy: 429. broken: 500, and nothing is done. unsure: 503. lost: it is done, and the connection ends unanswered.
twice: it is done, and answered two times. pending: taken, and the webhook that tells its end never arrives. returned:
the money comes back."""
FAULTS: Final[tuple[tuple[Fault, ...], ...]] = (
    ("busy", "", "lost"),
    ("broken", "unsure", "", "twice"),
    ("pending", "", "returned"),
)
"""Per payment, a fault for each call about it; none after the last one."""


class TrialTransfer(msgspec.Struct):
    """A payment as the provider has it. `state`: taken, done or returned. `amount`: minor units."""

    account: str
    amount: int
    state: str


class TrialAnswer(NamedTuple):
    """An answer. `copies`: how many times it is sent; 0: the connection ends without one."""

    status: int
    body: bytes
    copies: int = 1
    wait: str = ""


@dataclass
class TrialProvider:
    """The provider without its server. `note`: writes a row of the record."""

    note: Callable[[dict[str, object]], None]
    transfers: dict[str, TrialTransfer] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)

    def answer(self, method: str, path: str, body: bytes) -> TrialAnswer:
        """Answer one request. `path`: below the base."""
        parts = path.strip("/").split("/")
        if (method, parts) == ("POST", ["quotes"]):
            return TrialAnswer(200, msgspec.json.encode({"fee": FEE}))
        if (method, parts) == ("POST", ["payouts"]):
            asked = msgspec.json.decode(body)
            return self._called(method, asked["key"], lambda fault: self._paid(asked, fault))
        if method == "GET" and len(parts) == 2 and parts[0] == "payouts":
            return self._called(method, parts[1], lambda fault: self._told(parts[1], fault))
        return TrialAnswer(404, b"{}")

    def _called(self, method: str, key: str, act: Callable[[Fault], TrialAnswer]) -> TrialAnswer:
        fault = self._fault(key)
        if fault == "busy":
            answer = TrialAnswer(429, b"{}", wait="1")
        elif fault in ("broken", "unsure"):
            answer = TrialAnswer(500 if fault == "broken" else 503, b"out of order")
        else:
            answer = act(fault)
        self.note({"call": method, "key": key, "fault": fault, "status": answer.status, "answers": answer.copies})
        return answer

    def _fault(self, key: str) -> Fault:
        """Return the fault of the next call about a payment (rule 2)."""
        number = list(self._calls).index(key) if key in self._calls else len(self._calls)
        row = FAULTS[number % len(FAULTS)]
        self._calls[key] += 1
        place = self._calls[key] - 1
        return row[place] if place < len(row) else ""

    def _paid(self, asked: dict[str, object], fault: Fault) -> TrialAnswer:
        key, amount = str(asked["key"]), asked["amount"]
        if key not in self.transfers and isinstance(amount, int):
            state = "taken" if fault == "pending" else "done"
            self.transfers[key] = TrialTransfer(str(asked["account"]), amount, state)
            self.note({"transfer": key, "account": asked["account"], "amount": amount})
            if fault == "pending":
                self.note({"webhook": key, "delivered": False})
        answer = self._state(key)
        return answer._replace(copies={"lost": 0, "twice": 2}.get(fault, 1))

    def _told(self, key: str, fault: Fault) -> TrialAnswer:
        transfer = self.transfers.get(key)
        if transfer is not None:
            if fault == "returned":
                transfer.state = "returned"
                self.note({"returned": key})
            elif transfer.state == "taken":
                transfer.state = "done"
        return self._state(key)

    def _state(self, key: str) -> TrialAnswer:
        transfer = self.transfers.get(key)
        if transfer is None:
            return TrialAnswer(404, b'{"state":"absent"}')
        told = {"state": transfer.state, "key": key, "amount": transfer.amount, "reference": f"trial-{key[:8]}"}
        return TrialAnswer(202 if transfer.state == "taken" else 200, msgspec.json.encode(told))


def record(folder: Path) -> list[dict[str, object]]:
    """Return the rows of a provider's record (rule 4)."""
    return [msgspec.json.decode(row, type=dict[str, object]) for row in (folder / RECORD).read_bytes().splitlines()]


async def serve(folder: Path) -> None:
    """Serve until SIGTERM or SIGINT (rule 1)."""
    files = make_authority(folder, datetime.datetime.now(datetime.UTC))
    token, ended = (folder / TOKEN).read_text().strip(), asyncio.Event()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certificate, files.key)
    with (folder / RECORD).open("ab", buffering=0) as file:

        def note(row: dict[str, object]) -> None:
            file.write(msgspec.json.encode(row) + b"\n")

        provider = TrialProvider(note)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await _answered(provider, token, request)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, HOST, 0, ssl_context=tls).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        with writing(folder / URL) as url:
            url.write(f"https://{HOST}:{runner.addresses[0][1]}/v1".encode())
        await ended.wait()
        await runner.cleanup()


async def _answered(provider: TrialProvider, token: str, request: web.BaseRequest) -> web.StreamResponse:
    body = await request.read()
    if request.headers.get("Authorization") != f"Bearer {token}" or not request.path.startswith("/v1/"):
        return web.Response(status=401)
    if request.method == "POST" and not request.path.endswith("/quotes"):
        named = request.headers.get("Idempotency-Key")
        if named is None or named != msgspec.json.decode(body).get("key", named):
            return web.Response(status=400)
    answer = provider.answer(request.method, request.path.removeprefix("/v1"), body)
    response = web.Response(status=answer.status, body=answer.body, content_type="application/json")
    if answer.wait:
        response.headers["Retry-After"] = answer.wait
    if request.transport is None:
        return response
    if not answer.copies:
        request.transport.close()
    if answer.copies > 1:
        await response.prepare(request)
        await response.write_eof()
        head = f"HTTP/1.1 {answer.status} OK\r\nContent-Length: {len(answer.body)}\r\n\r\n"
        request.transport.write(head.encode() + answer.body)
    return response


def main() -> None:
    asyncio.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
