"""A program of the operator that moves the money, called once per question.

Rules
1. The program is named by its absolute path and called without a shell, with one argument: `quote`, `send`, `status` or
   `cancel`. It reads one JSON object from its standard input: `key`, `account`, `amount` (minor units), `currency`. The
   account stands in no argument, as every user of the machine can read those.
2. It writes one JSON object to its standard output (coordinator/rails/provider_words.py) and ends with status 0 within
   `CALL_SECONDS` seconds. Anything else is `unknown`, and the whole process group is killed.
3. It gets no variables but PATH, HOME and LANG: no passphrase of the run's keys.
4. It must pay once where it is called twice with one key. Where it cannot, payout.resend_hours is 0.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any, Final

import msgspec

from echo2.coordinator.rails import account_text, provider_words
from echo2.coordinator.rails.provider_words import MOST_BYTES, unknown
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.coordinator.rails.rail_kind import RailKind
from echo2.coordinator.settings.payout_config import PayoutSection
from echo2.runtime.errors import LocalFault

CALL_SECONDS: Final = 60.0
"""Seconds for one call."""
_VARIABLES: Final = ("PATH", "HOME", "LANG")


class CommandRail:
    """A rail that calls a program. `patience`: seconds per call."""

    def __init__(self, program: str, currency: str, patience: float = CALL_SECONDS) -> None:
        """Check the program. Raises `LocalFault`."""
        path = Path(program)
        if not path.is_absolute() or not path.is_file() or not os.access(path, os.X_OK):
            raise LocalFault(f"payout.command {program!r} is no absolute path of a program that may be run")
        if path.stat().st_mode & 0o022:
            raise LocalFault(f"others than its owner may write {program}: `chmod go-w` it first")
        self._program, self._currency, self._patience = program, currency, patience

    async def quote(self, account: str, amount: int) -> Quote:
        """Return the fee that the program states. Raises `BadAccount`, `LocalFault`."""
        account_text.check(account)
        data, why = await self._call("quote", account=account, amount=amount)
        fee = None if data is None else provider_words.fee(data)
        if fee is None:
            raise LocalFault(f"{self._program} gave no quote: {why or 'its answer has no fee, an integer'}")
        return Quote(fee)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        """Have the program pay. Raises `BadAccount`."""
        account_text.check(account)
        return await self._ask("send", idempotency_key, account=account, amount=amount)

    async def status(self, idempotency_key: str) -> RailAnswer:
        """Ask the program what became of a payment."""
        return await self._ask("status", idempotency_key)

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        """Have the program stop a payment, if it can."""
        return await self._ask("cancel", idempotency_key)

    async def _ask(self, method: str, key: str, **facts: Any) -> RailAnswer:
        data, why = await self._call(method, key=key, **facts)
        return unknown(why) if data is None else provider_words.answer(data, key)

    async def _call(self, method: str, **facts: Any) -> tuple[bytes | None, str]:
        """Return the program's output, or None and why there is none."""
        question = msgspec.json.encode({**facts, "currency": self._currency}) + b"\n"
        env = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, method, stdin=pipe, stdout=pipe, stderr=nothing, env=env, start_new_session=True
            )
        except OSError as error:
            return None, f"the program cannot be started: {error.strerror}"
        try:
            async with asyncio.timeout(self._patience):
                data = await _exchange(process, question)
                code = await process.wait()
        except TimeoutError:
            return None, f"the program gave no answer within {self._patience:g} s"
        finally:
            await _end_program(process)
        return (data, "") if code == 0 else (None, f"the program ended with status {code}")


async def _end_program(process: asyncio.subprocess.Process) -> None:
    """Kill a program that still runs, and wait for its end. asyncio sees that only once its output was read."""
    assert process.stdout is not None
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2):
            while await process.stdout.read(MOST_BYTES):
                pass
            await process.wait()


async def _exchange(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    """Write the question and return what comes back, one byte more than `MOST_BYTES` at most."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(question)
        await process.stdin.drain()
    process.stdin.close()
    data = bytearray()
    while len(data) <= MOST_BYTES and (chunk := await process.stdout.read(MOST_BYTES + 1 - len(data))):
        data += chunk
    return bytes(data)


def _open(settings: PayoutSection) -> CommandRail:
    return CommandRail(settings.command, settings.currency)


def _check(settings: PayoutSection) -> None:
    if not Path(settings.command).is_absolute():
        raise LocalFault(f"payout.command {settings.command!r} is no absolute path")


COMMAND_RAIL: Final = RailKind(
    connect=lambda settings: contextlib.nullcontext(_open(settings)),
    needs={"command": "the absolute path of your program"},
    target=lambda settings: settings.command,
    check=_check,
    check_here=_open,
)
