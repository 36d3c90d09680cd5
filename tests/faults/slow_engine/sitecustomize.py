"""On PYTHONPATH, makes the engine process of a node compute slowly while the file exists that SLOW_WHILE names."""

import os
import sys

if "echo2.engines.process.host" in sys.orig_argv:
    import time

    from echo2.engines.engine import Finished
    from echo2.engines.transformers.engine import TransformersEngine

    quick = TransformersEngine.step

    def slow(self: TransformersEngine) -> list[Finished]:
        """Take half a second for a token of all rows."""
        if os.path.exists(os.environ["SLOW_WHILE"]):
            time.sleep(0.5)
        return quick(self)

    TransformersEngine.step = slow
