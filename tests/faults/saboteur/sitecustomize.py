"""On PYTHONPATH, makes the engine process of a node give two false answers. Its daemon is honest and does not
notice."""

import sys

if "echo2.engines.process.host" in sys.orig_argv:
    import itertools

    import msgspec

    from echo2.engines.engine import Finished, Sample
    from echo2.engines.transformers.engine import TransformersEngine

    honest = TransformersEngine.step
    turns = itertools.chain(("drift-median", "incomplete"), itertools.repeat("ok"))  # a third lie suspends its key

    def lying(self: TransformersEngine) -> list[Finished]:
        """Return groups whose first sample has too low log-probabilities, or that lack one."""
        return [
            done if isinstance(done.outcome, Exception) else done._replace(outcome=spoilt(done.outcome))
            for done in honest(self)
        ]

    def spoilt(samples: list[Sample]) -> list[Sample]:
        first, *others = samples
        code = next(turns)
        if code == "incomplete":
            return others
        by = {"drift-median": 5e-4, "ok": 0.0}[code]
        lower = [value - by for value in first.logprobs]
        return [msgspec.structs.replace(first, logprobs=lower), *others]

    TransformersEngine.step = lying
