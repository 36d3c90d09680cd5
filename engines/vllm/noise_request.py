"""The noise that a request to vLLM asks for, as arguments that pass through its own interfaces and its HTTP API.

A request with the argument `echo2_seed` (32 hexadecimal digits) and, where its rollout is not at its beginning,
`echo2_first` (the number of its next token) gets the noise of engines.sampling.sampling added to its logits. Without
`echo2_seed` it gets none. The request itself must be greedy (temperature 0), without penalties. `echo2_temperature`
(thousandths) and `echo2_kept_as` are of rows at another temperature than 1, which a server has not
(engines.vllm.tempered_rows).
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from echo2.engines.temperature import PLAIN_TEMPERATURE, factor_of

SEED: Final = "echo2_seed"
FIRST_TOKEN_KEY: Final = "echo2_first"
TEMPERATURE_KEY: Final = "echo2_temperature"
KEPT_KEY: Final = "echo2_kept_as"
MOST_TOKEN_NUMBER: Final = (1 << 32) - 1
"""Token numbers are keyed as 32 bits."""


class NoiseRequest(NamedTuple):
    """`seed`: 16 bytes. `first`: number of the request's next token within its rollout. `temperature`: thousandths.
    `kept_as`: name under which its log-probabilities are kept where that is not 1."""

    seed: bytes
    first: int
    temperature: int = PLAIN_TEMPERATURE
    kept_as: int = 0

    @classmethod
    def read(cls, arguments: Mapping[str, Any] | None) -> Self | None:
        """Read a request's extra arguments; None: it asks for no noise. Raises ValueError."""
        if not arguments or SEED not in arguments:
            return None
        try:
            seed, first = bytes.fromhex(arguments[SEED]), int(arguments.get(FIRST_TOKEN_KEY, 0))
            temperature = int(arguments.get(TEMPERATURE_KEY, PLAIN_TEMPERATURE))
            kept_as = int(arguments.get(KEPT_KEY, 0))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{SEED} must be 32 hexadecimal digits and {FIRST_TOKEN_KEY} a number") from error
        if len(seed) != 16 or not 0 <= first <= MOST_TOKEN_NUMBER:
            raise ValueError(
                f"{SEED} must be 32 hexadecimal digits and {FIRST_TOKEN_KEY} a number from 0 to {MOST_TOKEN_NUMBER}"
            )
        factor_of(temperature)
        return cls(seed, first, temperature, kept_as)

    @property
    def arguments(self) -> dict[str, str | int]:
        plain: dict[str, str | int] = {SEED: self.seed.hex(), FIRST_TOKEN_KEY: self.first}
        if self.temperature == PLAIN_TEMPERATURE:
            return plain
        return {**plain, TEMPERATURE_KEY: self.temperature, KEPT_KEY: self.kept_as}
