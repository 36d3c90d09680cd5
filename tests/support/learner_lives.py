"""Learners, each in a forked process of its own, for the test that kills them.

A line of JSON (a Life) on stdin starts a learner. Stdout then has its process id, "." before each step, and "killed by
9" after its death. Importing takes seconds, forking milliseconds. A process with one thread can be
forked safely; the test's own, once it has loaded a model, cannot. A learner that hangs prints its traceback.
"""

import faulthandler
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from echo2.coordinator.learner.messages import Export, Hyper
from tests.support.tiny_learner import Main, ask, batch


class Life(msgspec.Struct, frozen=True):
    """The order for one learner. `journal`: a file to which the learner appends one line of JSON per publication."""

    folder: str
    model: str
    hyper: Hyper
    journal: str
    checkpoint_share: float = 1.0


def live(life: Life) -> NoReturn:
    """Open a session and publish, then step and publish until killed. Each publication is a durable line of the
    journal."""
    journal = Path(life.journal)
    main = Main(Path(life.folder), Path(life.model), life.hyper)
    main.checkpoint_share = life.checkpoint_share
    main.published = [msgspec.json.decode(text_line, type=Export) for text_line in journal.read_bytes().splitlines()]

    def publish(export: Export | None) -> None:
        if export is None:
            return
        with journal.open("ab") as file:
            file.write(msgspec.json.encode(export) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        main.publish(export)

    for number in range(1, len(main.published) + 2):
        ask(batch(number))  # a journal may name the groups of each earlier step
    session = main.open(publish=False)
    opened = session.answer_open()
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
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.write(1, b"%d\n" % child)
        _, status = os.waitpid(child, 0)
        os.write(1, b"killed by %d\n" % (status & 0x7F))


if __name__ == "__main__":
    main()
