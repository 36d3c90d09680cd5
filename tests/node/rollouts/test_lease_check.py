"""The check of a lease, and its conversion to a job and a submission."""

import struct
from pathlib import Path

import msgspec
import pytest

from echo2.engines.engine import Sample
from echo2.engines.process.versioned import LoadedVersion
from echo2.node.rollouts.lease_check import BadLease, check_lease, check_open, job_of, submission_of
from echo2.node.trust.trusted_set import Mismatch
from echo2.p2p.envelope import seal, verify
from echo2.p2p.errors import Stale
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RunSpec, TaskReference
from echo2.protocol.leases import Lease, LeaseRequest, Submission

KEY = generate_key()
NODE, NONCE, ROOT, NOW, CONTEXT = b"n" * 32, b"o" * 16, b"r" * 32, 1_000_000, 16
SPEC = RunSpec(
    run=b"u" * 32, name="run", model="m", assets=[], eos=1, vocabulary=64,
    tasks=[TaskReference(name="reverse", version=1)], staleness=4, group_size=2, limit=8,
    compute_dtype="float32", engines=["x"], sampling="g", price_mode="points",
)  # fmt: skip
LEASE = Lease(
    id=b"i" * 16, node=NODE, nonce=NONCE, task="reverse", task_version=1, index=3, prompt=[2, 3, 4],
    seeds=[b"a" * 16, b"b" * 16], limit=8, era=1, version=5, root=ROOT, sent=NOW, expires=NOW + 1,
)  # fmt: skip
ASK = LeaseRequest(nonce=NONCE, era=1, version=5, root=ROOT, engine="x/float32")


def checked(lease: Lease, tmp_path, *, context: int | None = CONTEXT, spec: RunSpec = SPEC) -> Lease:
    loaded = LoadedVersion(era=1, version=5, root=ROOT, weights=tmp_path)
    sealed = seal("lease", SPEC.run, encode(lease), KEY)
    verified = verify(sealed, "lease", SPEC.run, [public_bytes(KEY)], 1, lambda payload: decode(payload, Lease))
    return check_lease(verified, ask=ASK, node=NODE, current=loaded, runspec=spec, context=context)


def test_a_lease_for_this_node_and_version_is_admitted(tmp_path) -> None:
    assert checked(LEASE, tmp_path) == LEASE
    full = msgspec.structs.replace(LEASE, prompt=[2] * (CONTEXT - LEASE.limit))
    assert checked(full, tmp_path) == full, "prompt and limit may fill the context"


REFUSED: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "another node": ({"node": b"x" * 32}, Mismatch, "another node"),
    "an answer to another request": ({"nonce": b"x" * 16}, Mismatch, "another request"),
    "another era": ({"era": 2}, Mismatch, "version 5 of another era, while 5 is loaded"),
    "another version": ({"version": 4}, Mismatch, "version 4, while 5 is loaded"),
    "another content root": ({"root": b"x" * 32}, Mismatch, "is loaded"),
    "a task of no run": ({"task": "mining"}, BadLease, "'mining'"),
    "another version of the task": ({"task_version": 2}, BadLease, "version 2, which is not the run's"),
    "too few seeds": ({"seeds": [b"a" * 16]}, BadLease, "1 seeds"),
    "a seed twice": ({"seeds": [b"a" * 16] * 2}, BadLease, "2 distinct ones"),
    "no tokens": ({"limit": 0}, BadLease, "0 tokens per rollout"),
    "more tokens than the run's limit": ({"limit": 9}, BadLease, "the run's limit is 8"),
    "an empty prompt": ({"prompt": []}, BadLease, "prompt is empty"),
    "a token beyond the vocabulary": ({"prompt": [64]}, BadLease, "tokens that the model lacks"),
    "more tokens than the context": ({"prompt": [2] * 9}, BadLease, "9 prompt tokens and allows 8 more"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_lease_with_one_fault_is_refused_by_its_own_error(fault: str, tmp_path) -> None:
    changes, error, sentence = REFUSED[fault]
    with pytest.raises(error, match=sentence):
        checked(msgspec.structs.replace(LEASE, **changes), tmp_path)


def test_a_model_without_a_stated_context_bounds_no_prompt(tmp_path) -> None:
    long = msgspec.structs.replace(LEASE, prompt=[2] * 1000)
    assert checked(long, tmp_path, context=None) == long


def test_the_job_has_the_leases_sampling_and_the_runs_eos() -> None:
    job = job_of(LEASE, SPEC)
    assert (job.prompt, job.seeds, job.limit, job.eos) == (LEASE.prompt, LEASE.seeds, LEASE.limit, SPEC.eos)
    assert (job.task, job.task_version, job.index, job.split) == ("reverse", 1, 3, "train")
    assert not job.single_turn


def test_a_lease_of_the_operators_own_task_needs_no_task_of_that_name_and_one_of_an_unknown_kind_is_refused(
    tmp_path: Path,
) -> None:
    kinds = {"gym": "single", "talk": "served", "deal": "opened", "x": "late"}
    tasks = [TaskReference(name=name, version=3 if name == "gym" else 1, kind=kind) for name, kind in kinds.items()]
    spec = msgspec.structs.replace(SPEC, tasks=[*SPEC.tasks, *tasks])
    lease = msgspec.structs.replace(LEASE, task="gym", task_version=3)
    assert checked(lease, tmp_path, spec=spec) == lease
    assert job_of(lease, spec).single_turn
    lease = msgspec.structs.replace(LEASE, task="talk")
    assert (job_of(lease, spec).served, job_of(lease, spec).opened) == (lease.id, False)
    lease = msgspec.structs.replace(LEASE, task="deal")
    assert (job_of(lease, spec).served, job_of(lease, spec).opened) == (lease.id, True)
    with pytest.raises(BadLease, match="of kind 'late', for which this build does not work"):
        checked(msgspec.structs.replace(LEASE, task="x"), tmp_path, spec=spec)


def test_the_submission_tags_each_rollout_with_the_leases_version_and_root() -> None:
    samples = [
        Sample(tokens=[5, 1], logprobs=[-0.5, -0.25], turns=[2]),
        Sample(tokens=[6], logprobs=[-1.0], turns=[1]),
    ]
    submission = decode(submission_of(LEASE, samples), Submission)
    assert (submission.lease, submission.era, submission.version, submission.root) == (LEASE.id, 1, 5, ROOT)
    assert [rollout.tokens for rollout in submission.rollouts] == [[5, 1], [6]]
    assert [struct.unpack(f"<{len(one.tokens)}f", one.logprobs) for one in submission.rollouts] == [
        (-0.5, -0.25),
        (-1.0,),
    ]
    for rollout in submission.rollouts:
        assert [(part.version, part.root, part.first) for part in rollout.segments] == [(5, ROOT, 0)]


def test_a_lease_without_time_left_is_not_worked_for() -> None:
    check_open(LEASE, LEASE.expires - 1)
    with pytest.raises(Stale, match="expired"):
        check_open(LEASE, LEASE.expires)
