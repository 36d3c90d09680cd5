"""Decide which groups that a lost node has begun are finished by another one, and who is paid for what. Pure.

Rules
1. A node is asked to report its tokens so far (`Lease.report_every`, a minute as a rule) only for a lease of a training
   prompt, of an exact class, of a task that is not served, to a key that is known or proven. Canaries and audits
   are asked for too, so that nobody can tell them from other leases; those of the kind "finish" are not. The
   request must say that its engine can tell them (`LeaseRequest.begun`). Free keys are not asked: what is reported is
   kept on disk.
2. A report of a lease is taken after three quarters of that time (`least_between`), and only tokens behind those that
   are written, with one log-probability each; other fields and longer forms of the same are not written. So an open
   lease keeps at most one group's tokens. They are deleted when its group is received, or it ends and is not moved.
3. A lease that ends without a group, by expiry or given back, is *moved* if another node's finish would still be
   learned from one step later, and if at least as many tokens were reported as its samples' prompts have: the second
   node computes those once more. Of a set of twins no other may be open, received or accepted. A set is moved at most
   once.
4. The reported tokens are scored first, as a group is (partial_verdicts.py). False ones are refused, and count against
   the first node alone. Those that hold wait `WAIT` for a known or proven node that asks for a lease under their
   version; then the prompt is leased anew.
5. The second lease is a twin of the kind "finish" (twin_sets.py): same prompt, seeds and version, with the tokens as
   `Lease.begun`. It may go to the first node too, which may have started again. Only what follows them is judged.
6. A rollout earns its weight once. Of a moved lease the first node earns the weight of prompt and reported tokens less
   that of the prompt; the second one the rest. So nobody earns a long prompt by a few tokens, and both together earn
   what one node would have (coordinator/accounts/pay.py). The second computation of prompt and begun tokens is not
   paid.
7. A moved lease counts as expired wherever a lease that expired or was given back counts.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from echo2.coordinator.learner.age import fresh
from echo2.engines.process.messages import floats
from echo2.protocol.partial_groups import PartialSample
from echo2.tasks.turn_ends import Ends, end_mask

REPORT_EVERY: Final = 60_000
"""Milliseconds between two reports that a node is asked for, as a rule. A group that takes less is never reported."""
WAIT: Final = 60_000
"""Milliseconds (rule 4). A node that works under the version and has a free place asks within this time."""
_FLOOR: Final = -3.4028234663852886e38


class SampleProgress(NamedTuple):
    """The tokens of a sample that are written, and whether it has ended."""

    tokens: int = 0
    ended: bool = False


class LeaseFacts(NamedTuple):
    """The facts of a lease and its run that a report is held against. `limit`: most sampled tokens of a rollout."""

    samples: int
    limit: int
    vocabulary: int
    ends: Ends


def least_between(report_every: int) -> int:
    """Return the least time between two reports that are taken (rule 2): clocks and connections vary."""
    return report_every * 3 // 4


def continues(before: Sequence[SampleProgress], samples: Sequence[PartialSample]) -> bool:
    """Tell whether a report begins where the last one ended (rule 2)."""
    return all(one.first == at.tokens or not one.tokens for at, one in zip(before, samples, strict=True))


def progress_after(
    before: Sequence[SampleProgress], samples: Sequence[PartialSample], facts: LeaseFacts
) -> list[SampleProgress] | str:
    """Return the progress after a report that continues; or the fault in its form, in words (T0)."""
    after = list[SampleProgress]()
    for number, (at, one) in enumerate(zip(before, samples, strict=True)):
        if not one.tokens:
            if one.logprobs:
                return f"sample {number}: {len(one.logprobs)} bytes of log-probabilities for 0 tokens"
            after.append(at)
            continue
        if fault := _fault_of(at, one, facts):
            return f"sample {number}: {fault}"
        total = at.tokens + len(one.tokens)
        after.append(SampleProgress(total, total == facts.limit or one.tokens[-1] in facts.ends))
    return after


def _fault_of(at: SampleProgress, one: PartialSample, facts: LeaseFacts) -> str:
    tokens, total = np.asarray(one.tokens), at.tokens + len(one.tokens)
    if at.ended:
        return "tokens follow its end"
    if total > facts.limit:
        return f"{total} tokens, the most is {facts.limit}"
    if int(tokens.max()) >= facts.vocabulary:
        return f"there is no token {int(tokens.max())} in a vocabulary of {facts.vocabulary}"
    if end_mask(tokens, facts.ends)[:-1].any():
        return "tokens follow the end of a turn"
    if len(one.logprobs) != 4 * len(one.tokens):
        return f"{len(one.logprobs)} bytes of log-probabilities for {len(one.tokens)} tokens"
    values = floats(one.logprobs)
    return "" if ((values >= _FLOOR) & (values <= 0.0)).all() else "a log-probability is impossible"


def is_in_time(version: int, step: int, staleness: int) -> bool:
    """Tell whether a group that is finished one step later would still be learned from. `step`: the learner's."""
    return fresh(step + 1, version, staleness)


def is_worth_moving(tokens: int, prompt: int, samples: int) -> bool:
    """Tell whether enough of a lost lease was reported (rule 3). `tokens`: of all samples. `prompt`: its tokens."""
    return tokens > 0 and tokens >= prompt * samples
