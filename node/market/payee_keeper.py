"""Tell the run where the node's pay is to go.

Rules
1. An account is checked before anything is stored or sent (protocol/payee_accounts.py).
2. One that was named while no daemon ran is sent by the next daemon, until the run takes or refuses it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from node.links.coordinator_client import RequestRefused
from node.market import payee_file
from node.market.payee_file import PayeeRecord
from node.run_context import RunContext
from p2p.errors import P2PError
from protocol.market import PayeeRequest, PayeeResponse
from protocol.payee_accounts import account_fault
from runtime.backoff import Backoff
from runtime.errors import LocalFault

AWAY: Final = Backoff(5.0, 300.0, jitter=0.5)
"""Seconds between two attempts to tell the run an account."""

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

    async def run(self) -> None:
        """Send an account that waits (rule 2); then return."""
        failures = 0
        while (account := payee_file.read(self._context.folder).wanted) is not None:
            try:
                await self.name(account)
            except RequestRefused as error:
                if error.refusal.retry_after is None:
                    _log.warning("account refused", reason=str(error))
                    self._forget_wanted()
                    return
            except P2PError as error:
                _log.debug("account not told", reason=str(error))
            failures += 1
            await asyncio.sleep(AWAY.delay(failures, self._random.random()))

    async def name(self, account: str | None) -> PayeeRecord:
        """Tell the run an account, or ask what it has; return what is known then. `account`: None: ask alone. Raises
        `BadAccountText`, `RequestRefused`, `P2PError`, `NodeError`."""
        if account is not None:
            check(account)
        told = await self._call(PayeeRequest(account=account))
        record = payee_file.read(self._context.folder).taken(account, told, self._context.clock.now())
        payee_file.write(self._context.folder, record)
        return record

    def _forget_wanted(self) -> None:
        record = payee_file.read(self._context.folder)
        payee_file.write(self._context.folder, PayeeRecord(record.named, None, record.told, record.at))
