"""Texts of the refusal codes for the page, readable without knowledge of the code.

The sentences of protocol.refusals address one node about one group; the texts here describe many groups. A code
without a text here is shown by its sentence there, with the facts left out.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from echo2.protocol.refusals import REASONS

WORDS: Mapping[str, str] = {
    "late": "Received after the lease had expired.",
    "version-lie": "Made with another version than the lease binds.",
    "other-weights": "The node did not show that it has the weights of the lease's version.",
    "incomplete": "Rollouts of the group were missing.",
    "tokens": "Token ids that the model does not have, or that are not the prompt's.",
    "turns": "Turns of the conversation do not fit together.",
    "logprobs": "Log-probabilities that are impossible.",
    "segments": "Weights were not named for every token.",
    "end": "A rollout ended too early or went on too long.",
    "transcript": "The environment's replies are not the ones the task gives.",
    "seeded-choice": "Tokens differ from what the lease's seed and these weights give.",
    "close-choices": "Too many tokens differ narrowly from the seeded choice.",
    "near-ties": "Over many groups too many tokens differ narrowly from the seeded choice.",
    "party-near-ties": "Over many groups from one network too many tokens differ narrowly from the seeded choice.",
    "drift": "A log-probability differs too much from the coordinator's own.",
    "drift-median": "Log-probabilities differ too much from the coordinator's own throughout.",
    "evidence": "Over many tokens the arithmetic differs from that of the node's engine class.",
    "unknown-device": "First groups of a kind of device, outside what rounding explains.",
    "not-scorable": "The coordinator could not check the group.",
}
_FAULTS = {"node": "fault of the node", "operator": "fault of the operator", "nobody": "fault of no party"}


class RefusalRow(NamedTuple):
    """A row of the table of refusals. `fault`: the party that can mend the cause. `groups`: refused with this code."""

    code: str
    words: str
    fault: str
    groups: int


def rows(refused: Mapping[str, int]) -> list[RefusalRow]:
    """Return one row per code, the most frequent first."""
    ordered = sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    return [RefusalRow(code, words(code), _fault(code), count) for code, count in ordered if count]


def words(code: str) -> str:
    """Return the text of a code, without the facts of one group."""
    if code in WORDS:
        return WORDS[code]
    return re.sub(r"\{[^}]*\}", "…", REASONS[code].sentence) if code in REASONS else "Unknown to this version."


def _fault(code: str) -> str:
    return _FAULTS[REASONS[code].fault] if code in REASONS else ""
