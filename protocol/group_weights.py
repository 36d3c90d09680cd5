"""The weight of an accepted group, by its lengths alone, in milli-RE (thousandths of a reference rollout). Pure.

Rules
1. Under `Costs` a group weighs its cost: that of the prompt, once, and for each sample that of the tokens behind it. So
   each token is counted as often as an engine computes it.
2. A given token with n tokens before it costs `given + attention * (n + 1)`: the growth of attention with the length.
   A sampled one costs `decode / denominator` times as much. Tokens that an environment gives cost as the prompt's do.
3. The cost is an exact fraction. It is divided by `unit`, and rounded once per group, halves up.
4. Without `Costs` each rollout weighs round(1000 n / 128), halves up, with n tokens of prompt and completion together.
5. A sample without a sampled token, whose episode was not opened, weighs nothing; a group of such samples neither.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from echo2.p2p.wire_types import Hash, Milliseconds, Name, Wire

REFERENCE_TOKENS: Final = 128
MILLI: Final = 1000

Factor = Annotated[int, Meta(ge=1, lt=1 << 53)]
Turns = Sequence[Sequence[int]]
"""Tokens of each sample's turns: sampled, given, sampled, ..."""


class Costs(Wire, frozen=True):
    """coordinator (ledger): what tokens cost, the same for all engines. `given`, `attention`, `decode`, `denominator`:
    rule 2. `unit`: the cost of one RE, in the units of `given`. `builds`: builds of the engine that was measured. `at`:
    ms."""

    run: Hash
    given: Factor
    attention: Annotated[int, Meta(ge=0, lt=1 << 53)]
    decode: Factor
    denominator: Factor
    unit: Factor
    builds: Annotated[list[Name], Meta(max_length=64)]
    at: Milliseconds


class GroupLengths(NamedTuple):
    """The lengths of a group. `prompt`: its tokens."""

    prompt: int
    turns: Turns


def whole_weight(costs: Costs | None, prompt: int, turns: Turns) -> int:
    """Return the weight of a group, all its samples counted (rules 1 to 4)."""
    if costs is None:
        return sum(
            [(2 * MILLI * (prompt + sum(sample)) + REFERENCE_TOKENS) // (2 * REFERENCE_TOKENS) for sample in turns]
        )
    whole = costs.unit * costs.denominator
    return (2 * MILLI * scaled_cost(costs, prompt, turns) + whole) // (2 * whole)


Weight = Callable[[Costs | None, int, Turns], int]
"""(Costs, tokens of the prompt, turns of each sample) -> the weight of a group."""


def group_weight(costs: Costs | None, lengths: GroupLengths, weight: Weight = whole_weight) -> int:
    """Return the weight of a group, of which samples without a sampled token are left out (rule 5)."""
    played = [sample for sample in lengths.turns if sample and (sample[0] or any(sample[2::2]))]
    return weight(costs, lengths.prompt, played) if played else 0


def scaled_cost(costs: Costs, prompt: int, turns: Turns) -> int:
    """Return the cost of a group times `denominator` (rules 1 and 2)."""
    total = costs.denominator * _span(costs, 0, prompt)
    for sample in turns:
        first = prompt
        for number, tokens in enumerate(sample):
            total += (costs.denominator if number % 2 else costs.decode) * _span(costs, first, tokens)
            first += tokens
    return total


def _span(costs: Costs, first: int, tokens: int) -> int:
    """Return what `tokens` given tokens cost, the first of which has `first` tokens before it."""
    seen = tokens * first + tokens * (tokens + 1) // 2
    return costs.given * tokens + costs.attention * seen
