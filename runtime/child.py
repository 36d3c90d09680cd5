"""Start, call and end a child process: engine, scorer and learner. Calls are framed messages on its pipes.

Rules
1. A frame is a u32 (big-endian) length and that many bytes of msgpack, at most `MAX_FRAME`. Frames go down the child's
   stdin and up its original stdout; any text that the child prints goes to its stderr, which the parent logs.
2. A child ends by itself, at once, when its pipe closes, even in the middle of a computation: no daemon leaves an
   orphan. It ignores SIGINT and leads a session of its own, so that Ctrl-C in the daemon's terminal reaches only the
   daemon.
3. When a child dies, every pending call raises `ChildDied`; no call is left waiting.
4. An error raised by a handler is data: it crosses as (kind, message) and is raised in the parent as `ChildError`. A
   full disk is raised as `DiskFull`, since it concerns the whole machine.
5. A child that sends an invalid frame is killed: nothing that follows on such a pipe can be trusted.
6. A child may answer some calls later, several at a time, while it computes in steps (`DeferredWork` of
   runtime/child_pipe.py); the order is that of runtime/call_order.py. The parent may take such a call back.
7. A child computes on one thread and waits passively unless told otherwise, by environment variables set before torch
   is imported. With torch's defaults two busy cores slow a decode step thirtyfold.
8. A `Confined` child sees none of the daemon's environment and works in a folder of its own. One that answers or
   prints more than it may is killed, and the calls under way say so. So is one that sends a frame which answers no
   call: without end, such frames would cost the daemon a core. A call whose caller has gone, or that was taken back,
   may be answered once: its answer may have been on its way.
"""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from echo2.runtime.errors import DiskFull
from echo2.runtime.host_memory import describe_kill
from echo2.runtime.pipe_frames import (
    LENGTH,
    MAX_FRAME,
    InvalidPipeFrame,
    PipeFault,
    PipeFrame,
    decode_frame,
    encoded_frame,
)

STDERR_KEPT = 64 * 2**10  # bytes: enough for a traceback
ENDING_POLL_SECONDS = 0.01  # seconds between two looks at a child that has closed its pipe
READ_AHEAD = 2**20  # bytes buffered ahead of a read, so that a long answer arrives in few reads
DEFAULTS = {
    "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # a progress bar would be one long line of the parent's log
}  # fmt: skip

T = TypeVar("T")


class ChildError(Exception):
    """A handler in the child raised. `kind`: the name of the exception's class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Confined(NamedTuple):
    """The bounds of a child that runs code which is not ours (rule 8). `folder`: where it works. `answer`: most bytes
    of an answer. `printed`: most bytes that it prints during one call."""

    folder: Path
    answer: int
    printed: int


class ChildDied(Exception):
    """The child is gone. `returncode`: negative for a signal; `stderr`: the end of its output there."""

    def __init__(self, name: str, returncode: int, stderr: str) -> None:
        last = stderr.strip().splitlines()[-1:] or ["no output"]
        why = describe_kill() if returncode == -signal.SIGKILL else ""
        super().__init__(f"{name} ended with {returncode}: {last[0]}{f' ({why})' if why else ''}")
        self.name, self.returncode, self.stderr = name, returncode, stderr

    @property
    def told(self) -> bool:
        """Whether the child ended on request: with status 0, by SIGTERM or by SIGINT."""
        return self.returncode in (0, -signal.SIGTERM, -signal.SIGINT)


def error_of_fault(fault: PipeFault) -> Exception:
    """Return the error that the parent raises for a fault (rule 4)."""
    return DiskFull(fault.message) if fault.kind == DiskFull.__name__ else ChildError(fault.kind, fault.message)


def environment(extra: Mapping[str, str] | None = None, *, inherited: bool = True) -> dict[str, str]:
    """Return the parent's environment, `DEFAULTS` where it says nothing, and `extra` above both. `inherited`: whether
    the parent's is in it; without it the search path for programs alone is."""
    return {**DEFAULTS, **(os.environ if inherited else {"PATH": os.defpath}), **(extra or {})}


async def _status(process: Process) -> int:
    """Return the status of a process that ends. `Process.wait` waits for its pipes as well, which a grandchild may hold
    for ever."""
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(ENDING_POLL_SECONDS)  # asyncio has no event for it
    return process.returncode


def _close_pipes(process: Process) -> None:
    """Close what a child that is gone has left open: asyncio closes a pipe at its end alone, and no end comes while a
    grandchild holds it."""
    process._transport.close()  # type: ignore[attr-defined]


class Child:
    """A child process, seen from the daemon's event loop. Calls may overlap; the child works them off in order."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        env: Mapping[str, str] | None = None,
        confined: Confined | None = None,
    ) -> None:
        self.name = name
        self._argv, self._env, self._confined = list(argv), dict(env or {}), confined
        self._most_answer = MAX_FRAME if confined is None else confined.answer
        self._printed = 0
        """Bytes printed since the last call began."""
        self._log = structlog.get_logger("engines").bind(child=name)
        self._stderr = bytearray()
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._given_up = set[int]()
        """Calls of a confined child whose caller has gone; their answers may still come (rule 8)."""
        self._last_id = 0
        self._callback: Callable[[str, bytes], None] | None = None
        self._process: Process | None = None
        self._life: asyncio.Task[int] | None = None
        self._heard = 0.0
        """The event loop's time of the last frame, or of the call that began a wait."""

    @property
    def owes_answer(self) -> bool:
        """Whether a call waits for the child, and for nothing else."""
        return bool(self._pending)

    @property
    def silent_seconds(self) -> float:
        """For how long the child, which owes an answer, has sent nothing; 0.0: it owes none."""
        return asyncio.get_running_loop().time() - self._heard if self.owes_answer else 0.0

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def has_ended(self) -> bool:
        """Whether the process was started, and is gone."""
        return self._life is not None and self._life.done()

    @property
    def exited(self) -> "asyncio.Future[int]":
        """A future of the return code, done when the process is gone. Shielded: cancelling a waiter ends nothing."""
        if self._life is None:
            raise RuntimeError(f"{self.name} was not started")
        return asyncio.shield(self._life)

    def events(self, callback: Callable[[str, bytes], None]) -> None:
        """Call `callback(method, msgpack body)` for each notification, in order, on the event loop."""
        self._callback = callback

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment(self._env, inherited=self._confined is None),
            cwd=None if self._confined is None else self._confined.folder,
            start_new_session=True,
            limit=READ_AHEAD,
        )
        self._life = asyncio.create_task(self._live(self._process), name=f"child {self.name}")

    async def call(
        self,
        method: str,
        body: msgspec.Struct | None,
        type_: type[T],
        *,
        timeout: float | None = None,
        withdraw: bool = False,
    ) -> T:
        """Call a handler in the child; return its answer as `type_`. `withdraw`: a caller that is cancelled, or that
        waits no longer, takes the call back.

        Raises ChildError, DiskFull, ChildDied, TimeoutError (without `withdraw` the child then works on).
        """
        process, loop = self._running(), asyncio.get_running_loop()
        self._last_id += 1
        call_id, self._printed = self._last_id, 0
        data = encoded_frame(call_id, "call", method, body)
        answer: asyncio.Future[bytes] = loop.create_future()
        if not self.owes_answer:
            self._heard = loop.time()
        self._pending[call_id] = answer
        try:
            async with asyncio.timeout(timeout):
                await self._send(process, data)
                raw = await answer
        except (asyncio.CancelledError, TimeoutError):
            if self._confined is not None:
                self._given_up.add(call_id)
            if withdraw:
                self._take_back(process, call_id, method)
            raise
        finally:
            self._pending.pop(call_id, None)
        return msgspec.msgpack.decode(raw, type=type_)

    def _take_back(self, process: Process, call_id: int, method: str) -> None:
        assert process.stdin is not None
        if not process.stdin.is_closing():
            process.stdin.write(encoded_frame(call_id, "cancel", method, None))

    async def stop(self, grace: float = 5.0) -> int:
        """Close the pipe, wait `grace` seconds, then kill the child's whole session. Return the return code."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(grace):
                return await self.exited
        except TimeoutError:
            self.kill()
            return await self.exited

    def kill(self, why: str = "") -> None:
        """Send SIGKILL to the child and its session, and close the pipe, by which descendants with sessions of their
        own end; do nothing if it is gone. `why`: said by `ChildDied`."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None:
            self._stderr += f"\n{why}".encode()
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._log.debug("already gone")

    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    def _death(self, returncode: int) -> ChildDied:
        return ChildDied(self.name, returncode, self._stderr.decode(errors="replace"))

    async def _send(self, process: Process, data: bytes) -> None:
        """Send the whole frame in one write, so that concurrent calls never interleave."""
        assert process.stdin is not None
        assert self._life is not None
        if not self._life.done() and not process.stdin.is_closing():
            try:
                process.stdin.write(data)
                return await process.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                self._log.debug("pipe closed while writing")
        raise self._death(await self.exited)

    async def _live(self, process: Process) -> int:
        errors = asyncio.create_task(self._keep_stderr(process))
        try:
            await self._read_frames(process)
        except InvalidPipeFrame as fault:
            self._log.error("invalid frame from child; killed it", fault=str(fault))
            self.kill(f"it sent an invalid frame: {fault}")
        except asyncio.CancelledError:  # the daemon ends without `stop`: nothing may be left waiting for the child
            self.kill()
            raise
        finally:
            returncode = await _status(process)
            # A grandchild may hold stderr open for ever; the output so far is readable at once.
            await asyncio.wait([errors], timeout=1.0)
            errors.cancel()
            _close_pipes(process)
            self._given_up.clear()
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(self._death(returncode))
                    answer.exception()  # silences asyncio: the caller may have seen the death while sending
        return returncode

    async def _read_frames(self, process: Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
                if length > self._most_answer:
                    raise InvalidPipeFrame(f"a frame of {length} bytes")
                self._take(decode_frame(await process.stdout.readexactly(length)))
                self._heard = asyncio.get_running_loop().time()
            except asyncio.IncompleteReadError:
                return  # the child closed its end: it is dead or about to die
            except msgspec.MsgspecError as error:
                raise InvalidPipeFrame(str(error)) from error

    def _take(self, frame: PipeFrame) -> None:
        if frame.id in self._given_up:
            self._given_up.remove(frame.id)
            return
        answer = self._pending.get(frame.id)
        if answer is None and self._confined is not None:
            raise InvalidPipeFrame("an answer to no call")
        if frame.id == 0:
            if self._callback is not None:
                asyncio.get_running_loop().call_soon(self._callback, frame.method, bytes(frame.body))
            return
        if answer is None or answer.done():
            return  # its caller was cancelled or timed out
        if frame.kind == "error":
            answer.set_exception(error_of_fault(msgspec.msgpack.decode(frame.body, type=PipeFault)))
        else:
            answer.set_result(bytes(frame.body))

    async def _keep_stderr(self, process: Process) -> None:
        assert process.stderr is not None
        rest = b""
        while part := await process.stderr.read(2**16):
            self._stderr += part
            del self._stderr[:-STDERR_KEPT]
            self._printed += len(part)
            if self._confined is not None and self._printed > self._confined.printed:
                return self.kill(f"it printed more than {self._confined.printed} bytes in one call")
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[-STDERR_KEPT:]
            for text_line in filter(None, lines):
                log = self._log.info if self._confined is None else self._log.debug
                log("stderr", line=text_line.decode(errors="replace"))
