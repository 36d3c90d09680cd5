"""The samples that the cross-version check remembers, and what it concludes from them."""

from echo2.coordinator.verification.cross_version import CrossVersionCheck, VerifiedSample
from echo2.engines.engine import Job, Sample
from echo2.engines.process.messages import pack_samples


def known(version: int, tokens: int = 40, era: int = 1) -> VerifiedSample:
    job = Job(prompt=[1], seeds=[bytes(16)], limit=99, eos=1, task="t", task_version=1, split="train", index=version)
    (sample,) = pack_samples([Sample(tokens=[2] * tokens, turns=[tokens], logprobs=[-1.0] * tokens)])
    return VerifiedSample(era, version, tokens, job, sample)


def test_the_shortest_sample_of_each_version_within_reach_is_remembered() -> None:
    check = CrossVersionCheck(staleness=2)
    assert not check.wants_sample(5, tokens=31)
    for one in (known(5), known(5, tokens=33), known(6), known(3), known(7, era=2)):
        assert check.wants_sample(one.version, one.tokens)
        check.remember(one)
    assert not check.wants_sample(5, tokens=34)
    assert check.sample_to_probe(1, 4) in (known(6),)
    assert check.sample_to_probe(1, 8) == known(6)
    assert check.sample_to_probe(1, 9) is None
    assert check.sample_to_probe(2, 6) == known(7, era=2)
    check.remember(known(10))
    assert check.sample_to_probe(1, 4) == known(6), "of versions 6 to 10"


def test_changes_in_a_few_steps_bound_the_changes_in_more_steps() -> None:
    check = CrossVersionCheck(staleness=4)
    assert not check.possible(3, [3]), "there is no other version"
    assert not check.possible(3, [3, 8]), "nor one within reach"
    assert check.possible(3, [2, 3]), "nothing is known"
    check.record(3, known(2), wrong=5)
    assert not check.possible(3, range(8)), "an eighth a step, four steps: a half"
    check.record(3, known(2), wrong=6)
    assert check.possible(3, range(8))
    assert not check.possible(3, [1, 2, 3, 5]), "two steps"
