"""A light node that fabricates groups which the stub scorer accepts."""

import struct

from benchmarks.attacks import light_node
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Rollout, Segment, Submission, VerdictsRequest
from echo2.tasks.tokenizer import EOS


class LightNode(light_node.LightNode):
    """A node's key and its sealed requests, without a connection, engine and weights."""

    def submit(self, lease: Lease, verdicts: VerdictsRequest | None = None) -> bytes:
        """Seal the submission of a fabricated group for a lease."""
        return self.sealed("submit", encode(submission(lease, self.terms.tokens)), verdicts)


def submission(lease: Lease, tokens: int) -> Submission:
    """Return a group of `tokens` sampled tokens per rollout, each with log-probability -0.5, which the stub scorer
    confirms."""
    sampled = [2 + (place + lease.index) % 40 for place in range(tokens - 1)] + [EOS]
    rollout = Rollout(
        tokens=sampled,
        turns=[tokens],
        logprobs=struct.pack(f"<{tokens}f", *[-0.5] * tokens),
        segments=[Segment(version=lease.version, root=lease.root, first=0)],
    )
    rollouts = [rollout] * len(lease.seeds)
    return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)
