"""Leave all that lives long out of Python's full garbage collections, each of which stops the process.

Rules
1. A full collection walks every container that Python tracks: a million of them stop all threads for 0.2 s, again and
   again as others come and go. What is alive when `run` begins, and every `COLLECT_SECONDS`, is left out from then on.
2. Nothing is left out for ever: each time all of it is tracked again first, and collected once. At the end too.
"""

import asyncio
import gc
from typing import Final

COLLECT_SECONDS: Final = 600.0


async def run() -> None:
    """Keep both rules until cancelled."""
    try:
        while True:
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            await asyncio.sleep(COLLECT_SECONDS)
    finally:
        gc.unfreeze()
