"""The rows of a long honest run, group by group, as the coordinator writes them into run.sqlite.

Rules
1. One group in 50 is refused, and the lease of one in 50 expires; the other groups are accepted. The last
   `Shape.undrawn` groups are accepted, and their receipts not confirmed. At the end `Shape.open` leases under old
   versions are open.
2. The ledger's chain, its postings and balances are valid: `Ledger.verify` passes. Documents decode as their types.
3. Signatures of leases and receipts have the right length, but do not verify: no program reads them again, and a
   million valid ones would take minutes.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from echo2.coordinator.accounts.ledger import POINTS_ISSUED
from echo2.coordinator.prompts.prompts import PromptSource
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.ledger_entries import ESCROW, FUND, ORIGIN, accrued_account, canonical, chain_hash, transfer
from echo2.p2p.envelope import Envelope, Signature
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import encode
from echo2.protocol.group_weights import whole_weight
from echo2.protocol.leases import Lease, Receipt, Received, Rollout, Segment, Submission
from echo2.tasks.task import Score

ERA: Final = 1
TOKENS: Final = 4
"""Sampled tokens of a rollout."""
CODES: Final = ("seeded-choice", "drift", "turns")
"""Codes of the refused groups, in turn."""
_DECIDED_AFTER, _EXPIRES_AFTER = 5_200, 20_000  # ms
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Shape:
    """The size of a run that ends at `now` (ms). `open`: leases still open at the end. `every`: ms from one group to
    the next. `undrawn`: groups that the learner has not drawn."""

    now: int
    groups: int = 1_000_000
    nodes: int = 10_000
    versions: int = 100_000
    open: int = 30_000
    every: int = 100
    group_size: int = 2
    undrawn: int = 30
    kept: int = 24 * 3600 * 1000
    """Milliseconds for which the content of a group is kept: of older ones there is what `TokenStorage.forget` leaves
    (coordinator/verdicts/token_storage.py), as in a run that has gone on for so long."""

    def version_of(self, group: int) -> int:
        """Return the version under which group number `group` was made."""
        return group * self.versions // self.groups

    def sent(self, group: int) -> int:
        """Return when the lease of group number `group` was sent, ms."""
        return self.now - (self.groups - group) * self.every - _DECIDED_AFTER


class Group(NamedTuple):
    """The rows of one group; None where the table has none."""

    lease: tuple[Any, ...] | None
    submission: tuple[Any, ...] | None
    verdict: tuple[Any, ...] | None
    entry: tuple[Any, ...]
    buffer: tuple[Any, ...] | None


class Rows:
    """Makes the rows in order. `role`: public key of the roles channel and ledger. `nodes`: public keys of the nodes.
    `roots`: content root of each version. `balances`: of the accounts so far."""

    def __init__(
        self,
        shape: Shape,
        run: bytes,
        role: bytes,
        nodes: Sequence[bytes],
        roots: Sequence[bytes],
        prompts: PromptSource,
    ) -> None:
        self._shape, self._run, self._nodes, self._roots = shape, run, nodes, roots
        self._peers = [peer_id(node) for node in nodes]
        self._signature = [Signature(role, bytes(range(64)))]
        self._prompts = [prompts.at(position) for position in range(512)]
        self._random = np.random.default_rng(7)
        self._tip, self._seq = ORIGIN, 0
        self.balances: Counter[str] = Counter()
        scores = [[Score(float((n + k) % 3 == 0), (n + k) % 3 == 0) for k in range(shape.group_size)] for n in range(3)]
        self._scores = [(_pack(some), len({score.reward for score in some}) > 1) for some in scores]
        self._logprobs = struct.pack(f"<{TOKENS}f", *[-0.5] * TOKENS)
        self._behaviour = _pack([self._logprobs] * shape.group_size)

    def issued(self) -> tuple[Any, ...]:
        """Return the ledger's first entry, which issues the points for all that follow."""
        return self._entry(
            self._shape.sent(0), "points.issued", "points:1", {"amount": POINTS_ISSUED}, (FUND, ESCROW), POINTS_ISSUED
        )

    def groups(self, start: int, stop: int) -> Iterator[Group]:
        """Make groups `start` to `stop` - 1. Call it in order: a group's entry is chained to the one before."""
        random = self._random.bytes(32 * (stop - start))
        for number in range(start, stop):
            at = 32 * (number - start)
            yield self._group(number, random[at : at + 16], random[at + 16 : at + 32])

    def still_out(self) -> Iterator[tuple[Any, ...]]:
        """Make the leases that are open at the end: under versions too old to count for room, three per node."""
        shape = self._shape
        for place in range(shape.open):
            random = self._random.bytes(32)
            version = max(0, shape.versions - 40 - place % 100)
            lease = self._lease(shape.groups + place, place // 3, version, shape.now - 60_000, random[:16], random[16:])
            yield self._lease_row(shape.groups + place, lease, "open", shape.now + 3_600_000)

    def _group(self, number: int, lease_id: bytes, nonce: bytes) -> Group:
        shape, kind = self._shape, number % 50
        node = number * 7919 % shape.nodes
        sent = shape.sent(number)
        lease = self._lease(number, node, shape.version_of(number), sent, lease_id, nonce)
        drawn = number < shape.groups - shape.undrawn
        gone = drawn and lease.expires < shape.now - shape.kept
        if kind == 23 and drawn:
            row = None if gone else self._lease_row(number, lease, "expired", lease.expires)
            return Group(row, None, None, self._end(lease, node, sent + _EXPIRES_AFTER, "expired", None), None)
        row, at = self._lease_row(number, lease, "decided", lease.expires, gone=gone), sent + 5_000
        payload = encode(self._submission(lease))
        digest = lease.id + lease.nonce
        scores, varied = self._scores[number % 3]
        received = self._sealed("received", encode(Received(lease=lease.id, submission_hash=digest, at=at)))
        submission = (lease.id, digest, at, *((None, None) if gone else (payload, scores)), received, 0)
        accepted = kind != 7 or not drawn
        code = "ok" if accepted else CODES[number // 50 % len(CODES)]
        total = shape.group_size * whole_weight(None, len(lease.prompt) + TOKENS, [()]) if accepted else 0
        entry = self._end(lease, node, sent + _DECIDED_AFTER, code, digest, total)
        verdict = self._verdict(lease, entry, code, total, digest, drawn)
        behaviour = None if gone else self._behaviour
        buffer = (lease.id, ERA, lease.version, at, varied, behaviour) if accepted else None
        return Group(row, submission, verdict, entry, buffer)

    def _lease(self, position: int, node: int, version: int, sent: int, lease_id: bytes, nonce: bytes) -> Lease:
        prompt = self._prompts[position % len(self._prompts)]
        return Lease(
            id=lease_id,
            node=self._nodes[node],
            nonce=nonce,
            task=prompt.task,
            task_version=prompt.task_version,
            index=prompt.index,
            prompt=prompt.tokens,
            seeds=[lease_id] * self._shape.group_size,
            limit=6,
            era=ERA,
            version=version,
            root=self._roots[version],
            sent=sent,
            expires=sent + _EXPIRES_AFTER,
        )

    def _lease_row(
        self, position: int, lease: Lease, state: str, expires: int, *, gone: bool = False
    ) -> tuple[Any, ...]:
        """Return the row of a lease. `gone`: whether its content has been deleted."""
        document = encode(msgspec.structs.replace(lease, prompt=[], seeds=[lease.id]) if gone else lease)
        nonce, sealed = (lease.id, b"") if gone else (lease.nonce, self._sealed("lease", document))
        place = (lease.id, lease.node, nonce, position, lease.era, lease.version, lease.sent, expires)
        return (*place, state, document, sealed)

    def _submission(self, lease: Lease) -> Submission:
        segments = [Segment(version=lease.version, root=lease.root, first=0)]
        rollout = Rollout(
            tokens=[*lease.prompt[: TOKENS - 1], 1], turns=[TOKENS], logprobs=self._logprobs, segments=segments
        )
        rollouts = [rollout] * self._shape.group_size
        return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)

    def _end(
        self, lease: Lease, node: int, at: int, code: str, digest: bytes | None, total: int = 0
    ) -> tuple[Any, ...]:
        """Return the ledger's entry of a lease's outcome. `digest`: hash of the submission, if any; `total`: points."""
        size = self._shape.group_size if total else 0
        end = LeaseOutcome(
            node=self._peers[node],
            lease=lease.id,
            era=lease.era,
            version=lease.version,
            sent=lease.sent,
            expires=lease.expires,
            received=None if digest is None else lease.sent + 5_000,
            code=code,
            rollouts=size,
            tokens_in=size * len(lease.prompt),
            tokens_out=size * TOKENS,
            weight=total,
            trainable=total > 0,
            submission_hash=digest,
        )
        kind = {"ok": "lease.accepted", "expired": "lease.expired"}.get(code, "lease.refused")
        return self._entry(
            at, kind, f"lease:{lease.id.hex()}", end, (ESCROW, accrued_account(self._peers[node])), total
        )

    def _entry(
        self, at: int, kind: str, key: str, facts: Any, between: tuple[str, str], amount: int
    ) -> tuple[Any, ...]:
        postings = transfer(*between, amount)
        for account, change in postings:
            self.balances[account] += change
        self._seq += 1
        data = _pack(facts)
        self._tip = chain_hash(self._tip, canonical(self._seq, at, kind, key, postings, data))
        return (self._seq, at, kind, key, _pack(postings), data, self._tip)

    def _verdict(
        self, lease: Lease, entry: tuple[Any, ...], code: str, total: int, digest: bytes, confirmed: bool
    ) -> tuple[Any, ...]:
        verdict, size = ("accepted", self._shape.group_size) if total else ("refused", 0)
        seq, at, *_, entry_hash = entry
        receipt = Receipt(
            run=self._run,
            node=lease.node,
            lease=lease.id,
            era=lease.era,
            version=lease.version,
            submission_hash=digest,
            verdict=verdict,
            code=code,
            reason="",
            trainable=total > 0,
            weight=total,
            entry=seq,
            entry_hash=entry_hash,
            at=at,
        )
        tokens = size * (len(lease.prompt) + TOKENS)
        sealed = self._sealed("receipt", encode(receipt))
        work = (total > 0, total, size, tokens)
        return (lease.id, lease.node, verdict, code, *work, seq, at, sealed, confirmed)

    def _sealed(self, kind: str, payload: bytes) -> bytes:
        return _pack(Envelope(kind, self._run, payload, self._signature))
