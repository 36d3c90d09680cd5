"""The child's side of its pipes: take calls, answer them at once or in steps, and end with the parent.

The rules are those of runtime/child.py."""

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, Protocol

import msgspec

from echo2.runtime.call_order import CallOrder, WaitingCall
from echo2.runtime.pipe_frames import (
    LENGTH,
    MAX_FRAME,
    InvalidPipeFrame,
    PipeFault,
    PipeFrame,
    decode_frame,
    encoded_frame,
)

Handlers = Mapping[str, tuple[Any, Callable[[Any], Any]]]
"""By method, the type of its body, and the function from the body to a Struct or None."""


class DeferredWork(Protocol):
    """Calls that a child works on together, in steps, and answers as they finish. `calls`: method -> type of its body.
    `barriers`: methods that begin only while no such call is under way (runtime/call_order.py, rule 3)."""

    calls: Mapping[str, Any]
    barriers: Collection[str]

    @property
    def idle(self) -> bool:
        """Whether a step would change nothing until another call comes, or `Pipe.wake`."""

    def begin(self, id: int, body: Any) -> None:
        """Begin a call. An error raised here is its answer."""

    def cancel(self, id: int) -> None:
        """End a call that was begun, without an answer."""

    def step(self) -> Iterable[tuple[int, object]]:
        """Compute one step; return (id, answer or Exception) of each call that it finished. Raises nothing."""


class _NoWork:
    """The deferred work of a child that answers each call at once: there is none."""

    calls: Mapping[str, Any] = {}
    barriers: Collection[str] = ()
    idle = True

    def begin(self, id: int, body: Any) -> None:
        return None

    def cancel(self, id: int) -> None:
        return None

    def step(self) -> Iterable[tuple[int, object]]:
        return ()


class Pipe:
    """The child's end of the pipes. Make it before any import that might print; `notify` is safe from any thread."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._input, self._output = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self._write_lock = threading.Lock()
        self._frames: queue.SimpleQueue[PipeFrame | None] = queue.SimpleQueue()
        """The parent's frames; None: `wake`."""

    def wake(self) -> None:
        """Have `serve` ask its work for a step, as it is no longer idle. Safe from any thread."""
        self._frames.put(None)

    def notify(self, method: str, body: msgspec.Struct | None) -> None:
        """Send the parent a message without an answer."""
        self._write(encoded_frame(0, "answer", method, body))

    def serve(
        self,
        handlers: Handlers,
        work: DeferredWork | None = None,
    ) -> NoReturn:
        """Answer calls in the calling (main) thread until the parent goes away; never returns.

        `handlers`: method -> (type of its body, function from the body to a Struct or None). `work`: the calls that are
        answered later.
        """
        frames = self._frames
        threading.Thread(target=self._watch, name="pipe", daemon=True).start()
        work = work or _NoWork()
        order = CallOrder(work.calls, work.barriers)
        while True:
            call = order.take()
            if call is not None and order.defers(call):
                self._begin(call, order, work)
            elif call is not None:
                self._handle(call, handlers)
            elif order.busy and not work.idle:
                for id, answer in work.step():
                    order.on_answer(id)
                    self._answer(id, answer)
            else:
                _on_frame(frames.get(), order, work)
            while not frames.empty():
                _on_frame(frames.get(), order, work)

    def _begin(self, call: WaitingCall, order: CallOrder, work: DeferredWork) -> None:
        try:
            work.begin(call.id, msgspec.msgpack.decode(call.body, type=work.calls[call.method]))
        except Exception as error:
            order.on_answer(call.id)
            self._answer(call.id, error)

    def _handle(self, call: WaitingCall, handlers: Mapping[str, tuple[Any, Callable[[Any], Any]]]) -> None:
        try:
            type_, handler = handlers[call.method]
            answer = handler(msgspec.msgpack.decode(call.body, type=type_))
        except Exception as error:
            answer = error
        self._answer(call.id, answer)

    def _answer(self, id: int, answer: object) -> None:
        """Send an answer, or an error in its place (rule 4)."""
        try:
            if isinstance(answer, Exception):
                raise answer
            data = encoded_frame(id, "answer", "answer", answer)
        except Exception as error:
            data = encoded_frame(id, "error", "answer", PipeFault(type(error).__name__, str(error)))
        self._write(data)

    def _watch(self) -> NoReturn:
        """Read until the pipe closes, then end the process in the middle of any computation."""
        status = 1
        try:
            while True:
                (length,) = LENGTH.unpack(self._read(LENGTH.size))
                if length > MAX_FRAME:
                    raise InvalidPipeFrame(f"a frame of {length} bytes")
                self._frames.put(decode_frame(self._read(length)))
        except EOFError:
            status = 0
        except (InvalidPipeFrame, msgspec.MsgspecError) as error:
            print(f"invalid frame from the parent, so this process ends: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = os.read(self._input, min(count - len(parts), 2**20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._write_lock:
            while view:
                try:
                    view = view[os.write(self._output, view) :]
                except BrokenPipeError:
                    os._exit(0)  # the parent is gone


def _on_frame(frame: PipeFrame | None, order: CallOrder, work: DeferredWork) -> None:
    if frame is None:
        return
    if frame.kind != "cancel":
        order.put(WaitingCall(frame.id, frame.method, frame.body))
    elif order.take_back(frame.id):
        work.cancel(frame.id)
