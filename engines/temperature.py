"""The two rules of sampling, and the temperature of the second. Pure, without torch.

Rules
1. A temperature is a whole number of thousandths, from `LEAST_TEMPERATURE` to `MOST_TEMPERATURE`. Rounding grows as
   logits do: at the least it is twice that of a temperature of 1, for which the exact classes have room.
2. At `PLAIN_TEMPERATURE` the rule is `PLAIN_RULE`, which never touches a logit. At any other it is `TEMPERED_RULE`:
   each logit is first multiplied by `factor_of` the temperature, in float32, and all else is as in `PLAIN_RULE`.
3. A product, not a quotient: every device rounds it in one manner, while some divide by multiplying with a reciprocal.
"""

import struct
from typing import Final

PLAIN_TEMPERATURE: Final = 1000
LEAST_TEMPERATURE: Final = 500
MOST_TEMPERATURE: Final = 2000
PLAIN_RULE: Final = "gumbel-splitmix64/1"
TEMPERED_RULE: Final = "gumbel-splitmix64/2"
RULES: Final = (PLAIN_RULE, TEMPERED_RULE)
"""Rules of an engine that chooses tokens by all logits."""


def rule_of(temperature: int) -> str:
    """Return the name of the rule at a temperature, in thousandths."""
    return PLAIN_RULE if temperature == PLAIN_TEMPERATURE else TEMPERED_RULE


def factor_of(temperature: int) -> float:
    """Return the factor of logits: 1000 / `temperature`, rounded to float32. Raises ValueError (rule 1)."""
    if not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"a temperature is from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE} thousandths, not {temperature}"
        )
    factor: float = struct.unpack("<f", struct.pack("<f", PLAIN_TEMPERATURE / temperature))[0]
    return factor
