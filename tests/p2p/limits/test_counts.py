"""A name that has nothing is not remembered."""

from collections import Counter

from echo2.p2p.limits.counts import take_one


def test_a_name_goes_with_its_last_one() -> None:
    counts = Counter({"ann": 2, "bob": 1})
    take_one(counts, "ann")
    take_one(counts, "bob")
    assert dict(counts) == {"ann": 1}
    take_one(counts, "nobody")
    assert dict(counts) == {"ann": 1}
