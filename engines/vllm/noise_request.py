"""The noise that a request to vLLM asks for, as arguments that pass through its own interfaces and its HTTP API.

A request with the argument `echo2_seed` (32 hexadecimal digits) and, where its rollout is not at its beginning,
`echo2_first` (the number of its next token) gets the noise of engines.sampling.sampling added to its logits. Without
`echo2_seed` it gets none. The request itself must be greedy (temperature 0), without penalties.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

SEED: Final = "echo2_seed"
FIRST_TOKEN_KEY: Final = "echo2_first"
MOST_TOKEN_NUMBER: Final = (1 << 32) - 1
"""Token numbers are keyed as 32 bits."""


class NoiseRequest(NamedTuple):
    """`seed`: 16 bytes. `first`: number of the request's next token within its rollout."""

    seed: bytes
    first: int

    @classmethod
    def read(cls, arguments: Mapping[str, Any] | None) -> Self | None:
        """Read a request's extra arguments; None: it asks for no noise. Raises ValueError."""
        if not arguments or SEED not in arguments:
            return None
        try:
            seed, first = bytes.fromhex(arguments[SEED]), int(arguments.get(FIRST_TOKEN_KEY, 0))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{SEED} must be 32 hexadecimal digits and {FIRST_TOKEN_KEY} a number") from error
        if len(seed) != 16 or not 0 <= first <= MOST_TOKEN_NUMBER:
            raise ValueError(
                f"{SEED} must be 32 hexadecimal digits and {FIRST_TOKEN_KEY} a number from 0 to {MOST_TOKEN_NUMBER}"
            )
        return cls(seed, first)

    @property
    def arguments(self) -> dict[str, str | int]:
        """The extra arguments of a request for it."""
        return {SEED: self.seed.hex(), FIRST_TOKEN_KEY: self.first}
