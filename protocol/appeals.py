"""Wire types of appeals: the basis of a verdict, and the request for another check of it."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.wire_types import Hash, Id, Milliseconds, Name, Sentence, Wire


class AppealRequest(Wire, frozen=True):
    """node -> coordinator, method "appeal": asks for the basis of the verdict on a lease of the node's own. `ask`: ask
    for another check as well. A suspended node may send it."""

    lease: Id
    ask: bool = False


class CheckAnswer(Wire, frozen=True):
    """The answer of a further check. `by`: who asked: "appeal", "operator" or "audit". `code`: the code under which the
    group would be decided by it."""

    by: Name
    code: Name
    reason: Sentence
    at: Milliseconds


class AppealResponse(Wire, frozen=True):
    """coordinator -> node, to "appeal". `code`, `reason`: code and reason of the verdict. `statistic`, `threshold`:
    what was measured, and what it was held against, for people. `calibration`: calibration of the lease; None: its
    class is exact. `stored`: "group", "excerpt" or "nothing". `state`: state of the further checks: "none", "waiting",
    "answered" or "lost". `reversed`: whether the group was paid after all (True) or taken back (False); None: the
    verdict stands."""

    code: Name
    reason: Sentence
    statistic: Sentence
    threshold: Sentence
    calibration: Hash | None
    stored: Name
    state: Name
    answers: Annotated[list[CheckAnswer], Meta(max_length=16)] = []
    reversed: bool | None = None
