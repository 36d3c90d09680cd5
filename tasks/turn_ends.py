"""The tokens that end a sampled turn: the one place that compares tokens with them. Pure.

Rules
1. A model may name several: Llama 3 has <|eot_id|> and <|end_of_text|>. Each of them ends a turn, and none stands
   inside one.
2. A turn without an end was cut: by the limit on sampled tokens, and by nothing else.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHORT_TURN_TOKENS = 64
"""Tokens of a turn up to which a list is quicker than an array."""
Ends = tuple[int, ...]
"""Ids of the tokens that end a turn; the first is the one that is written where an answer is ended by a program."""


def is_end(token: int, ends: Ends) -> bool:
    """Tell whether a token ends a turn."""
    return token in ends


def end_mask(tokens: NDArray[np.integer], ends: Ends) -> NDArray[np.bool_]:
    """Return a mask, True where a token ends a turn."""
    mask: NDArray[np.bool_] = tokens == ends[0] if len(ends) == 1 else np.isin(tokens, ends)
    return mask


def without_end(tokens: Sequence[int], ends: Ends) -> Sequence[int]:
    """Return the tokens without the end at their end, if there is one."""
    return tokens[:-1] if len(tokens) and tokens[-1] in ends else tokens


def token_list(tokens: Sequence[int] | NDArray[np.integer]) -> list[int]:
    if isinstance(tokens, list):
        return tokens
    return tokens.tolist() if isinstance(tokens, np.ndarray) else list(tokens)


def fault_of_turn(tokens: Sequence[int] | NDArray[np.integer], ends: Ends, *, at_limit: bool) -> str | None:
    """Return the fault in the form of a sampled turn, in words; None: there is none. `tokens`: tokens at least one.
    `at_limit`: whether the limit on sampled tokens is reached with it."""
    if len(tokens) <= SHORT_TURN_TOKENS:
        tokens = token_list(tokens)
        inner = tokens[:-1]
        followed, ended = ends[0] in inner or (len(ends) > 1 and not set(ends).isdisjoint(inner)), tokens[-1] in ends
    else:
        mask = end_mask(np.asarray(tokens), ends)
        followed, ended = bool(mask[:-1].any()), bool(mask[-1])
    if followed:
        return "tokens follow the end of a turn"
    if not ended and not at_limit:
        return "a turn stops without end-of-sequence before the token limit"
    return None
