"""The backend over a stand-in of the sequences: which of them each row has, and when it is free again."""

import numpy as np
import pytest
from numpy.typing import NDArray

from echo2.engines.batch.continuous_batch import FirstToken, NextToken
from echo2.engines.llamacpp.sequence_backend import SequenceBackend
from echo2.engines.llamacpp.sequences import Fed
from echo2.engines.sampling import sampling_numpy

VOCABULARY = 11
SEED = bytes(16)


class Strings:
    """Sequences as lists of tokens; the logits after one favour the sum of its tokens."""

    def __init__(self) -> None:
        self.content: dict[int, list[int]] = {}
        self.resets = 0
        self.token_bytes, self.nbytes = 8, 80

    def take(self) -> int:
        number = next(number for number in range(99) if number not in self.content)
        self.content[number] = []
        return number

    def free(self, sequence: int) -> None:
        del self.content[sequence]

    def copy(self, source: int, length: int) -> int:
        number = self.take()
        self.content[number] = self.content[source][:length]
        return number

    def cut(self, sequence: int, length: int) -> None:
        del self.content[sequence][length:]

    def feed(self, tokens: list[Fed]) -> NDArray[np.float32]:
        rows = []
        for token in tokens:
            assert len(self.content[token.sequence]) == token.position
            self.content[token.sequence].append(token.token)
            if token.wanted:
                row = np.zeros(VOCABULARY, np.float32)
                row[sum(self.content[token.sequence]) % VOCABULARY] = 9.0
                rows.append(row)
        return np.array(rows, np.float32)

    def step(self, tokens: list[Fed]) -> NDArray[np.float32]:
        assert [token.sequence for token in tokens] == sorted(token.sequence for token in tokens)
        return self.feed(tokens)

    def reset(self) -> None:
        self.content, self.resets = {}, self.resets + 1


@pytest.fixture
def strings() -> Strings:
    return Strings()


@pytest.fixture
def backend(strings: Strings) -> SequenceBackend:
    return SequenceBackend(strings, VOCABULARY, lambda: 1000)  # type: ignore[arg-type]


def next_of(token: int, position: int, greedy: bool = True) -> NextToken:
    return NextToken(token, position, SEED, position, greedy)


def test_the_first_row_takes_the_prompt_s_sequence_and_the_others_copies(
    backend: SequenceBackend, strings: Strings
) -> None:
    (prompt,) = backend.prefill([[1, 2]])
    backend.extend(prompt, [3])
    first = FirstToken(prompt, SEED, True)
    assert backend.decode([], [first, first])().tokens == [6, 6]
    assert strings.content == {0: [1, 2, 3], 1: [1, 2, 3]}
    assert backend.decode([next_of(6, 3), next_of(4, 3)], [])().tokens == [1, 10]
    assert backend.decode([next_of(1, 4), next_of(10, 4)], [first])().tokens == [2, 9, 6]
    assert strings.content[2] == [1, 2, 3]
    backend.release(prompt)
    backend.vacate(0, 2)
    assert strings.content.keys() == {1, 2}
    assert backend.decode([next_of(5, 3), next_of(9, 5)], [])().tokens == [0, 7]


def test_a_prompt_that_rows_wait_for_keeps_its_part_when_its_first_row_ends(
    backend: SequenceBackend, strings: Strings
) -> None:
    (prompt,) = backend.prefill([[1, 2]])
    backend.decode([], [FirstToken(prompt, SEED, True)])
    backend.decode([next_of(3, 2)], [])
    backend.vacate(0, 0)
    assert strings.content == {0: [1, 2]}
    assert backend.decode([], [FirstToken(prompt, SEED, True)])().tokens == [3]
    backend.release(prompt)
    backend.vacate(0, 0)
    assert strings.content == {}


def test_a_prompt_without_rows_is_freed_when_it_is_released(backend: SequenceBackend, strings: Strings) -> None:
    one, other = backend.prefill([[1], [2, 3]])
    backend.release(one)
    assert strings.content == {1: [2, 3]}
    backend.release(other)
    assert strings.content == {}


def test_rows_choose_by_their_own_seed_number_and_rule(backend: SequenceBackend) -> None:
    (prompt,) = backend.prefill([[4]])
    first = FirstToken(prompt, SEED, True)
    backend.decode([], [first, first, first])
    kinds = [(False, 1000), (True, 1000), (False, 2000)]
    rows = [NextToken(1, 1, bytes([n]) * 16, 1, *kind) for n, kind in enumerate(kinds)]
    chosen = backend.decode(rows, [])()
    logits = np.zeros((3, VOCABULARY), np.float32)
    logits[:, 5] = 9.0
    logits[2] /= 2
    expected, logprobs = sampling_numpy.choose(logits, sampling_numpy.keys((row.seed, row.number) for row in rows))
    assert chosen.tokens == [expected[0], 5, expected[2]]
    assert [chosen.logprobs[0], chosen.logprobs[2]] == [logprobs[0], logprobs[2]]
    assert -20 < chosen.logprobs[1] <= 0


def test_a_sequence_with_values_that_are_not_finite_is_not_used_again(
    backend: SequenceBackend, strings: Strings
) -> None:
    (prompt,) = backend.prefill([[1]])
    first = FirstToken(prompt, SEED, True)
    backend.decode([], [first, first])
    backend.release(prompt)
    backend.clean(0)
    backend.vacate(0, 1)
    assert strings.content.keys() == {0, 1}
    (other,) = backend.prefill([[2]])
    assert other.sequence == 2
    backend.release(other)
    backend.vacate(0, 0)
    assert (strings.content, strings.resets) == ({}, 1)


def test_memory_is_that_of_the_device_and_what_the_rows_have(backend: SequenceBackend) -> None:
    assert backend.memory().at_hand == 1080
    assert backend.memory().token == 8
    backend.prefill([[1]])
    backend.reset()
    assert backend.decode([], [])().tokens == []


def test_a_row_that_is_parked_goes_on_in_its_own_sequence(backend: SequenceBackend, strings: Strings) -> None:
    (prompt,) = backend.prefill([[4, 5]])
    (token,) = backend.decode([], [FirstToken(prompt, SEED, True)])().tokens
    backend.release(prompt)
    (second,) = backend.decode([next_of(token, 2)], [])().tokens
    parked = backend.park(0, 3)
    backend.vacate(0, 0)
    assert list(strings.content.values()) == [[4, 5, token]]
    backend.extend(parked, [second, 1])
    (third,) = backend.decode([], [FirstToken(parked, SEED, True, 4)])().tokens
    backend.release(parked)
    assert third == (4 + 5 + token + second + 1) % VOCABULARY
    backend.vacate(0, 0)
    assert strings.content == {}


def test_a_row_that_is_parked_goes_on_in_the_next_step(backend: SequenceBackend, strings: Strings) -> None:
    (prompt,) = backend.prefill([[4, 5]])
    (token,) = backend.decode([], [FirstToken(prompt, SEED, True)])().tokens
    backend.release(prompt)
    (second,) = backend.decode([next_of(token, 2)], [])().tokens
    parked = backend.park(0, 3)
    backend.vacate(0, 0)
    backend.resume(parked)
    (third,) = backend.decode([next_of(second, 3)], [])().tokens
    backend.release(parked)
    assert third == (4 + 5 + token + second) % VOCABULARY
    assert list(strings.content.values()) == [[4, 5, token, second]]
    backend.vacate(0, 0)
    assert strings.content == {}


def test_a_row_that_is_parked_while_others_wait_for_its_prompt_leaves_the_prompt_there(
    backend: SequenceBackend, strings: Strings
) -> None:
    (prompt,) = backend.prefill([[4, 5]])
    backend.decode([], [FirstToken(prompt, SEED, True)])
    backend.decode([next_of(6, 2)], [])
    parked = backend.park(0, 3)
    backend.vacate(0, 0)
    assert strings.content == {prompt.sequence: [4, 5], parked.sequence: [4, 5, 6]}
    backend.decode([], [FirstToken(prompt, SEED, True)])
    backend.release(parked)
    assert strings.content == {prompt.sequence: [4, 5]}
