"""Stops of verifiers' rollouts.

Rules
1. Behind a turn that was cut at the run's limit no other one comes; the rollout is scored as it is.
2. A conversation beyond `MOST_CONVERSATION` is not written as tokens: that would take the memory and the time of all
   rollouts in this process. Its rollout ends with the stop `TOO_LONG`, which is a fault of the environment.
"""

from verifiers.v1.trace import Trace
from verifiers.v1.types import Request

CUT_STOP = "echo2_cut"
TOO_LONG = "echo2_too_long"
MOST_CONVERSATION = 2 << 20
"""Most bytes of a conversation, as JSON: an answer of 1 MB, whose line feeds take two each, is let through."""
FAULT_STOP = f"the environment says too much: its conversation has more than {MOST_CONVERSATION} bytes"


async def is_cut(trace: Trace) -> bool:
    """Tell whether the last turn was cut (rule 1)."""
    return bool(trace.calls) and trace.calls[-1].finish_reason == "length"


async def is_too_long(request: Request) -> bool:
    """Tell whether a call's conversation is too long (rule 2)."""
    return sum(len(message.model_dump_json()) for message in request.messages) > MOST_CONVERSATION
