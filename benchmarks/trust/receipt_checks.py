"""Measure T0 without a database: opening a signed submission, its check, and its rewards, by bare Ed25519 verification.

The group is the tiny preset's: 16 rollouts of task reverse. Each round takes a group of another prompt, so that nothing
is remembered. The anchor verifies the signature of the same bytes by the library that both use.
"""

from collections.abc import Callable
from statistics import median
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from benchmarks.attacks.groups import group_of
from benchmarks.harness.bench import Candidate, Claim, ratio, take_turns, timed
from echo2.coordinator.run.model_folder import TINY_MODEL
from echo2.coordinator.run.setup import PRESETS
from echo2.coordinator.verification.submitted_group import decode_group
from echo2.coordinator.verification.verification import check, rewards
from echo2.p2p.envelope import decode_unverified, open_signed, seal, signed_bytes
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RunSpec, TaskReference
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Request
from echo2.tasks import registry
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, FileTokenizer, char_tokenizer

RUN: Final = bytes(32)
BAR: Final = 0.3


class _Group:
    """A sealed submission, with its lease and the parts of its signature."""

    def __init__(self, index: int, size: int, limit: int, text: FileTokenizer) -> None:
        key = generate_key()
        task = registry.get("reverse", 1)
        prompt = list(task.episode("train", index, text).prompt)
        self.lease = Lease(
            id=index.to_bytes(16, "big"), node=public_bytes(key), nonce=bytes(16), task="reverse", task_version=1,
            index=index, prompt=prompt, seeds=[bytes([row]) * 16 for row in range(size)], limit=limit, era=1,
            version=index, root=bytes(32), sent=0, expires=1 << 40,
        )  # fmt: skip
        answer = [*text.encode("1234"), EOS]
        group = group_of(self.lease, [answer] * size)
        request = Request(
            recipient=RUN, id=index.to_bytes(16, "big"), method="submit", expires=1 << 40, body=encode(group)
        )
        self.sealed = seal("request", RUN, encode(request), key)
        document = decode_unverified(self.sealed)
        self.key = Ed25519PublicKey.from_public_bytes(self.lease.node)
        self.signature = document.signatures[0].signature
        self.covered = signed_bytes("request", RUN, document.payload)


def receipt_claims(quick: bool) -> list[Claim]:
    """Measure T0 of the tiny preset's group; return the claim."""
    section = PRESETS[TINY_MODEL]["run"]
    size, limit = int(section["group_size"]), int(section["limit"])
    text = FileTokenizer(char_tokenizer(), EOS)
    spec = RunSpec(
        run=RUN, name="t0", model="tiny", assets=[], eos=EOS, vocabulary=CHAR_SIZE,
        tasks=[TaskReference(name="reverse", version=1)], staleness=4, group_size=size, limit=limit,
        compute_dtype="float32", engines=["transformers/float32"], sampling="g", price_mode="points",
    )  # fmt: skip
    groups = [_Group(index, size, limit, text) for index in range(200 if quick else 1000)]
    task = registry.get("reverse", 1)

    def received(group: _Group) -> None:
        _, payload = open_signed(group.sealed, "request", RUN)
        submission = decode_group(decode(payload, Request).body)
        assert check(submission, group.lease, spec) is None
        msgspec.msgpack.encode(rewards(submission, group.lease, task, text))

    def verified(group: _Group) -> None:
        group.key.verify(group.signature, group.covered)

    nbytes = len(groups[0].sealed)
    measured = take_turns({"ours": _over(groups, received), "bare": _over(groups, verified)}, 7)
    ours, bare = ([1e6 / one.rate for one in measured[name]] for name in ("ours", "bare"))
    print(f"T0 of {size} rollouts, {nbytes} bytes: {median(ours):.0f} us; its signature alone: {median(bare):.0f} us")
    found = ratio(measured["ours"], measured["bare"])
    return [Claim("T0 of the tiny preset's group with its signature", found, "bare Ed25519 verification", BAR)]


def _over(groups: list[_Group], function: Callable[[_Group], None]) -> Candidate:
    def work() -> float:
        for group in groups:
            function(group)
        return len(groups)

    return timed(work)
