"""A process of tasks/check_probe.py, as its parent sees it: one question at a time, each within a time limit.

The limit counts the process's CPU seconds, so that work beside it changes no answer; one that waits has
`WAITING_FACTOR` times as long by the clock.
"""

import os
import queue
import subprocess
import tempfile
import threading
import time
from typing import Any, Final, Self

import msgspec
import psutil

from echo2.runtime.python_command import module_command
from echo2.tasks.check_probe import ProbedPrompt, ProbedTask, Question

WAITING_FACTOR: Final = 6
_SHOWN_CHARACTERS: Final = 300
_LOOK_SECONDS: Final = 0.2


class ProbeSilent(Exception):
    """The process did not answer in time, and was killed."""


class ProbeDied(Exception):
    """The process ended; the message has its status and the end of what it printed."""


class ProbeProcess:
    """A process with one task. `opened`: the task's facts, after `__enter__`."""

    def __init__(self, name: str, *, hash_seed: int, seconds: float, opening: float) -> None:
        """`seconds`: most time of a question. `opening`: most time until the task is open."""
        self._name, self._seconds, self._opening = name, seconds, opening
        self._env = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._printed = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            module_command("echo2.tasks.check_probe", self._name),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._printed, env=self._env,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="probe", daemon=True)
        self._reader.start()
        try:
            self.opened: ProbedTask = msgspec.json.decode(self._answer(self._opening), type=ProbedTask)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._printed):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # a question that a dead process did not read
                    continue

    def ask(self, question: Question, patience: int = 1) -> ProbedPrompt:
        """Return the answer to a question. `patience`: factor of its time limit. Raises `ProbeSilent`, `ProbeDied`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise ProbeDied(self._ending()) from None
        return msgspec.json.decode(self._answer(patience * self._seconds), type=ProbedPrompt)

    def _answer(self, seconds: float) -> bytes:
        spent, until = self._cpu_seconds(), time.monotonic() + WAITING_FACTOR * seconds
        while time.monotonic() < until and self._cpu_seconds() - spent < seconds:
            try:
                answer = self._lines.get(timeout=min(_LOOK_SECONDS, seconds))
            except queue.Empty:
                continue
            if not answer:
                raise ProbeDied(self._ending())
            return answer
        self._process.kill()
        raise ProbeSilent(f"the task gave no answer within {seconds:g} s")

    def _cpu_seconds(self) -> float:
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:  # it ended: `_lines` says so
            return 0.0
        return times.user + times.system

    def _read(self) -> None:
        assert self._process.stdout is not None
        for answer in self._process.stdout:
            self._lines.put(answer)
        self._lines.put(b"")

    def _ending(self) -> str:
        status = self._process.wait()
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - 4096))
        printed = self._printed.read().decode(errors="replace").strip().splitlines()
        return f"the task's process ended with {status}: {(printed or ['no output'])[-1][:_SHOWN_CHARACTERS]}"
