"""Tell the run where the node's pay is to go.

Rules
1. An account is checked before anything is stored or sent (protocol/payee_accounts.py).
2. One that was named while no daemon ran is sent by the next daemon. One that the run does not take, as it takes none
   of a node without accepted work, is sent again every hour, until it does or the owner names another.
3. At each start a node asks how the run pays, and logs it: the owner knows least payment and fee before there are
   earnings. A run that pays points is not asked.
4. Then it asks every hour. An account that was named elsewhere is logged once, and told by `status` and `why` for as
   long as it is in force or to follow: a thief of the key has named it, and the owner has a day to name his own.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.market import payee_file
from echo2.node.market.payee_file import PayeeRecord
from echo2.node.run_context import RunContext
from echo2.p2p.errors import P2PError
from echo2.protocol.market import PayeeRequest, PayeeResponse
from echo2.protocol.payee_accounts import account_fault
from echo2.runtime.backoff import Backoff
from echo2.runtime.errors import LocalFault

PAYEE_BACKOFF: Final = Backoff(5.0, 300.0, jitter=0.5)
"""Seconds between two attempts to tell the run an account."""

RESEND_SECONDS: Final = 3600.0
"""Seconds after which an account that the run did not take is sent again."""

_log = structlog.get_logger("node")


class BadAccountText(LocalFault):
    """A text that is no account. The message says why."""


def check(account: str) -> None:
    """Check an account (rule 1). Raises `BadAccountText`."""
    if fault := account_fault(account):
        raise BadAccountText(fault)


class PayeeKeeper:
    """The account of one node in one run. `call`: asks the coordinator; raises `RequestRefused`, `P2PError`."""

    def __init__(self, context: RunContext, call: Callable[[PayeeRequest], Awaitable[PayeeResponse]]) -> None:
        self._context, self._call = context, call
        self._random = random.Random(context.seed)
        self._waits = asyncio.Event()
        self.warning = ""
        """A sentence about an account that was named elsewhere (rule 4); empty: none is known."""

    async def run(self) -> None:
        """Send an account that waits (rule 2), until cancelled."""
        failures, pause = 0, 0.0
        while True:
            record = payee_file.read(self._context.folder)
            if record.wanted is None:
                self._waits.clear()
                await self._waits.wait()
                pause = RESEND_SECONDS
            await asyncio.sleep(pause)
            record = payee_file.read(self._context.folder)
            try:
                if record.wanted is not None:
                    await self._state_account(record.wanted)
                failures, pause = 0, RESEND_SECONDS
            except P2PError as error:
                failures += 1
                pause = PAYEE_BACKOFF.delay(failures, self._random.random())
                _log.debug("account not told", reason=str(error))

    async def learn(self) -> None:
        """Ask how the run pays, log it, and look for accounts that were named elsewhere (rules 3 and 4), until
        cancelled."""
        runspec = self._context.trust_store.trusted.runspec
        failures, logged = 0, False
        while runspec is not None and runspec.value.currency:
            try:
                told = (await self._ask_record(None)).told
            except RequestRefused as error:
                _log.warning("the run does not say how it pays", reason=str(error))
                return
            except P2PError as error:
                failures += 1
                _log.debug("payments not asked about", reason=str(error))
                await asyncio.sleep(PAYEE_BACKOFF.delay(failures, self._random.random()))
                continue
            failures = 0
            if told is not None and not logged:
                _log.info(payee_file.payments(told))
                logged = True
            await asyncio.sleep(RESEND_SECONDS)

    async def name(self, account: str | None) -> PayeeRecord:
        """Tell the run an account, or ask what it has; return what is known then. `account`: None: ask alone. One that
        the run does not take waits (rule 2). Raises `BadAccountText`, `RequestRefused`, `P2PError`, `NodeError`."""
        if account is None:
            return await self._ask_record(None)
        check(account)
        record = await self._state_account(account)
        self._waits.set()
        return record

    async def _state_account(self, account: str) -> PayeeRecord:
        """Tell the run an account; a refusal is stored. Raises `P2PError`, `NodeError`."""
        try:
            return await self._ask_record(account)
        except RequestRefused as error:
            _log.warning("account not taken", reason=str(error))
            record = payee_file.read(self._context.folder).wants(account, str(error))
            payee_file.write(self._context.folder, record)
            return record

    async def _ask_record(self, account: str | None) -> PayeeRecord:
        told = await self._call(PayeeRequest(account=account))
        record = payee_file.read(self._context.folder).after_answer(account, told, self._context.clock.now())
        payee_file.write(self._context.folder, record)
        before, self.warning = self.warning, record.foreign()
        if self.warning not in ("", before):
            _log.warning(self.warning)
        return record
