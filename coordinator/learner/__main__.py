"""`python -m coordinator.learner`: run the learner behind a pipe to the daemon (messages.py, runtime/child.py)."""

from typing import NoReturn

from runtime.child import Pipe


def main() -> NoReturn:
    """Serve until the parent ends. The pipe is set up first, so that output of an import cannot get into it."""
    pipe = Pipe()
    from transformers.utils import logging

    from coordinator.learner.call_handlers import LearnerHandlers
    from coordinator.learner.messages import BEGUN, Begun

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    pipe.serve(LearnerHandlers(lambda step: pipe.notify(BEGUN, Begun(step=step))).by_method())


if __name__ == "__main__":
    main()
