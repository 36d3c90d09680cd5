from echo2.engines.transformers.padded_scoring import _parts


def test_samples_of_like_length_share_a_pass() -> None:
    assert list(_parts([5, 6, 5, 6])) == [[1, 3, 0, 2]]
    assert list(_parts([500, 1, 490, 2])) == [[0, 2], [3, 1]]
    assert sorted(index for part in _parts([9000] * 5) for index in part) == [0, 1, 2, 3, 4]
    assert max(len(part) for part in _parts([9000] * 5)) == 1
