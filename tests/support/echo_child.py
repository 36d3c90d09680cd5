"""A child process for tests: it answers, fails, prints, notifies or computes without end, as it is told."""

import fcntl
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from echo2.runtime.child_pipe import Pipe
from echo2.runtime.errors import DiskFull


class Text(msgspec.Struct):
    text: str


class Counting:
    """Deferred calls: "count" to a number is answered that many steps later, with the steps of this process so far; a
    negative number is refused, and "word" is no number."""

    calls: Mapping[str, Any] = {"count": Text}
    barriers: Collection[str] = ("reset",)
    idle = False

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.steps = 0
        self.cancelled = 0

    def begin(self, id: int, body: Text) -> None:
        if int(body.text) < 0:
            raise ValueError("below zero")
        self.left[id] = int(body.text)

    def cancel(self, id: int) -> None:
        del self.left[id]
        self.cancelled += 1

    def step(self) -> Iterable[tuple[int, object]]:
        self.steps += 1
        time.sleep(0.001)
        ended = [id for id, left in self.left.items() if left <= 1]
        self.left = {id: left - 1 for id, left in self.left.items() if left > 1}
        return [(id, Text(str(self.steps))) for id in ended]

    def reset(self, _: None) -> Text:
        assert not self.left
        self.steps = 0
        return Text(str(self.cancelled))


def main() -> None:
    pipe = Pipe()
    counting = Counting()

    def echo(body: Text) -> Text:
        print("printed by the handler", flush=True)
        return body

    def fail(body: Text) -> None:
        raise LookupError(body.text)

    def fill(body: Text) -> None:
        raise DiskFull(body.text)

    def tell(body: Text) -> Text:
        for word in body.text.split():
            pipe.notify("word", Text(word))
        return body

    def wait(body: Text) -> Text:
        """Wait until there is a file."""
        while not os.path.exists(body.text):
            time.sleep(0.001)
        return body

    def compute(body: Text) -> None:
        """Hold a lock on the named file and compute: the lock is free only once this process has ended."""
        opened = open(body.text, "w")  # noqa: SIM115
        fcntl.flock(opened, fcntl.LOCK_EX)
        pipe.notify("locked", None)
        while True:
            sum(range(100_000))

    def grumble(body: Text) -> None:
        print(body.text, file=sys.stderr, flush=True)
        os._exit(7)

    def rubbish(_: None) -> None:
        os.write(pipe._output, b"\xff\xff\xff\xff rubbish")

    def environment(body: Text) -> Text:
        return Text(os.environ.get(body.text, ""))

    pipe.serve(
        {
            "echo": (Text, echo), "fail": (Text, fail), "fill": (Text, fill), "tell": (Text, tell),
            "wait": (Text, wait), "compute": (Text, compute), "grumble": (Text, grumble),
            "rubbish": (None, rubbish), "environment": (Text, environment), "reset": (None, counting.reset),
        },
        work=counting,
    )  # fmt: skip


if __name__ == "__main__":
    main()
