"""Lives of a learner, each in a process of its own, for the test that kills them.

A line of JSON (a Life) on stdin starts one; stdout then has its process id, "." as the session is open and as each
step is made, and "killed by 9" when it is dead. Importing takes seconds, forking milliseconds; and a process with one
thread can be forked safely, which the test's own, once it has loaded a model, cannot. A life that hangs says where.
"""

import faulthandler
import os
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from coordinator.learner.messages import Export, Hyper
from tests.support.tiny_learner import Main


class Life(msgspec.Struct, frozen=True):
    """`journal`: a line of JSON for each publication so far, and to add to."""

    folder: str
    model: str
    hyper: Hyper
    journal: str


def live(life: Life) -> NoReturn:
    """Open, publish, step, publish, ... until killed. A line of the journal is a publication, durable."""
    journal = Path(life.journal)
    main = Main(Path(life.folder), Path(life.model), life.hyper)
    main.published = [msgspec.json.decode(text_line, type=Export) for text_line in journal.read_bytes().splitlines()]

    def publish(export: Export | None) -> None:
        if export is None:
            return
        with journal.open("ab") as file:
            file.write(msgspec.json.encode(export) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        main.publish(export)

    session = main.open(publish=False)
    opened = session.opened()
    publish(opened.export)
    for number in range(opened.step + 1, 10_000):
        os.write(1, b".\n")
        publish(main.step(session, number, publish=False).export)
    os._exit(0)


def main() -> None:
    for text_line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                faulthandler.dump_traceback_later(60, exit=True)
                live(msgspec.json.decode(text_line, type=Life))
            finally:
                os._exit(1)
        os.write(1, b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        os.write(1, b"killed by %d\n" % (status & 0x7F))


if __name__ == "__main__":
    main()
