"""Wire types of groups under way: a node reports the tokens that it has sampled so far."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Count, Id, Tokens, Wire


class PartialSample(Wire, frozen=True):
    """The next tokens of one sample. `first`: how many of its tokens were reported before. `logprobs`: float32
    little-endian, one per token."""

    first: Count
    tokens: Tokens
    logprobs: bytes


class PartialRequest(Wire, frozen=True):
    """node -> coordinator, method "partial": the tokens of an open lease's group that are new since the last report.
    `samples`: one per seed, in order; a sample without new tokens has none."""

    lease: Id
    samples: Annotated[list[PartialSample], Meta(max_length=1024)]


class PartialResponse(Wire, frozen=True):
    """coordinator -> node, to "partial". `tokens`: of each sample, as many as the coordinator has written."""

    tokens: Annotated[list[Count], Meta(max_length=1024)]
