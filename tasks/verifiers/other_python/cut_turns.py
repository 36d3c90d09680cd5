"""A stop of verifiers' rollouts: behind a turn that was cut at the run's limit no other one comes."""

from verifiers.v1.trace import Trace


async def is_cut(trace: Trace) -> bool:
    """Tell whether the last turn was cut. The rollout is then scored as it is."""
    return bool(trace.calls) and trace.calls[-1].finish_reason == "length"
