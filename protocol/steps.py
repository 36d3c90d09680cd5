"""Wire types of served episodes: a sampled turn goes to the operator's environment, its answer comes back."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Id, Milliseconds, Tokens, Wire


class StepRequest(Wire, frozen=True):
    """node -> coordinator, method "step": a sampled turn of an open lease. `sample`: number of the rollout in its
    group. `turn_number`: its place in `Rollout.turns`, an even number. `tokens`: tokens of this turn."""

    lease: Id
    sample: Annotated[int, Meta(ge=0, le=1023)]
    turn_number: Annotated[int, Meta(ge=0, le=1023)]
    tokens: Tokens


class StepResponse(Wire, frozen=True):
    """coordinator -> node, to "step". `given`: the environment's tokens, the rollout's next turn; None: the episode is
    over. `expires`: when the lease expires now: its time stands while the environment computes."""

    given: Tokens | None
    expires: Milliseconds
