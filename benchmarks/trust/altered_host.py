"""The engine's process, changed by variables: `python -m benchmarks.trust.altered_host`.

`PLAIN`: no layer is packed. `SHIFT`: the noise of a rollout's token n is that of token n + SHIFT: by it a node goes on
after tokens that it chose by itself, as if it had sampled them.
"""

import os
from collections.abc import Iterable
from typing import Any, Final

MODULE: Final = "benchmarks.trust.altered_host"
PLAIN: Final = "ECHO2_TRUST_PLAIN"
SHIFT: Final = "ECHO2_TRUST_SHIFT"


def main() -> None:
    """Change the engine's modules, and serve."""
    from echo2.engines import host, sampling
    from echo2.engines.transformers import packed_linear

    if os.environ.get(PLAIN):
        packed_linear.pack = lambda model: 0
    shift, keys = int(os.environ.get(SHIFT, "0")), sampling.keys

    def shifted(pairs: Iterable[tuple[bytes, int]], *rest: Any) -> Any:
        return keys([(seed, number + shift) for seed, number in pairs], *rest)

    sampling.keys = shifted  # type: ignore[assignment]
    host.main()


if __name__ == "__main__":
    main()
