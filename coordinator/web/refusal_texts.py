"""Why groups were refused, in words for somebody who reads no code.

The sentences of protocol.refusals tell a node about one group of its own; here they stand for many. A code without
a line below is shown with its sentence, the facts left out.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from protocol.refusals import REASONS

WORDS: Mapping[str, str] = {
    "late": "Received after the lease had expired.",
    "version-lie": "Made with another version than the lease binds.",
    "incomplete": "Rollouts of the group were missing.",
    "tokens": "Token ids that the model does not have, or that are not the prompt's.",
    "turns": "Turns of the conversation do not fit together.",
    "logprobs": "Log-probabilities that cannot be.",
    "segments": "Weights were not named for every token.",
    "end": "A rollout ended too early or went on too long.",
    "transcript": "The environment's replies are not the ones the task gives.",
    "seeded-choice": "Tokens differ from what the lease's seed and these weights give.",
    "close-choices": "Too many tokens differ by a hair from the seeded choice.",
    "drift": "A log-probability is too far from the coordinator's own.",
    "drift-median": "Log-probabilities are too far from the coordinator's own throughout.",
    "not-scorable": "The coordinator could not check the group.",
}
_FAULTS = {"node": "the node", "operator": "the operator", "nobody": "nobody"}


class RefusalRow(NamedTuple):
    """`fault`: who can do something about it. `groups`: how many were refused for it."""

    code: str
    words: str
    fault: str
    groups: int


def rows(refused: Mapping[str, int]) -> list[RefusalRow]:
    """One row a reason, the most frequent first."""
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return [RefusalRow(code, words(code), _fault(code), count) for code, count in ordered if count]


def words(code: str) -> str:
    """What a code means, whatever its facts."""
    if code in WORDS:
        return WORDS[code]
    return re.sub(r"\{[^}]*\}", "…", REASONS[code].sentence) if code in REASONS else "Unknown to this version."


def _fault(code: str) -> str:
    return _FAULTS[REASONS[code].fault] if code in REASONS else ""
