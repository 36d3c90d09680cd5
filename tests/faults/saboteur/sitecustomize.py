"""On PYTHONPATH, makes the engine process of a node give two false answers. Its daemon is honest and does not
notice."""

import sys

if "engines.host" in sys.orig_argv:
    import itertools

    import msgspec

    from engines.engine import Job, Sample
    from engines.transformers.engine import TransformersEngine

    honest = TransformersEngine.generate
    turns = itertools.chain(("drift-median", "incomplete"), itertools.repeat("ok"))  # a third lie suspends its key

    def lying(self: TransformersEngine, job: Job) -> list[Sample]:
        """Return samples whose first has too low log-probabilities, or one sample too few."""
        first, *others = honest(self, job)
        code = next(turns)
        if code == "incomplete":
            return others
        by = {"drift-median": 5e-4, "ok": 0.0}[code]
        lower = [value - by for value in first.logprobs]
        return [msgspec.structs.replace(first, logprobs=lower), *others]

    TransformersEngine.generate = lying
