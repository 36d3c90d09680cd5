from collections.abc import Iterator

import numpy as np
import pytest

from echo2.engines.batch.continuous_batch import OutOfMemory
from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures, backends, golden_model, sequences
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.engines.llamacpp.sequences import Fed, Sequences
from tests.support import llama_cpp
from tests.support.llama_cpp import DEVICE

pytestmark = llama_cpp.needed
PROMPT = list(golden_model.PROMPT)
CLOSE = 1e-5 if DEVICE == "cpu" else 5e-2


@pytest.fixture
def rows() -> Iterator[Sequences]:
    library = backends.library()
    architecture = architectures.describe({**golden_model.CONFIG, "max_position_embeddings": 4096})
    model = ResidentModel(
        library, architecture, golden_model.GoldenWeights(), "float32", backends.device(library, DEVICE)
    )
    rows = Sequences(model, "float32", 1)
    yield rows
    rows.reset()
    model.close()


def prompt(rows: Sequences, tokens: list[int]) -> tuple[int, np.ndarray]:  # type: ignore[type-arg]
    """Feed a prompt to a new sequence; return it and the logits after the prompt."""
    sequence = rows.take()
    fed = [Fed(token, place, sequence, wanted=place == len(tokens) - 1) for place, token in enumerate(tokens)]
    return sequence, rows.feed(fed)[0].copy()


def test_a_copy_goes_on_from_the_part_that_was_copied(rows: Sequences) -> None:
    _, expected = prompt(rows, [*PROMPT, 5])
    source, _ = prompt(rows, [*PROMPT, 8, 9])
    copy = rows.copy(source, len(PROMPT))
    assert np.allclose(rows.step([Fed(5, len(PROMPT), copy)])[0], expected, atol=CLOSE)
    _, after_source = prompt(rows, [*PROMPT, 8, 9, 5])
    assert np.allclose(rows.step([Fed(5, len(PROMPT) + 2, source)])[0], after_source, atol=CLOSE)


def test_sequences_with_holes_between_them_have_the_logits_that_they_have_alone(rows: Sequences) -> None:
    taken = [prompt(rows, PROMPT[: 2 + number % 5])[0] for number in range(40)]
    alone = {number: prompt(rows, [*PROMPT[: 2 + number % 5], 7])[1] for number in (0, 1, 6, 39)}
    for sequence in taken:
        if sequence not in alone:
            rows.free(sequence)
    logits = rows.step([Fed(7, 2 + number % 5, number) for number in (0, 1, 6, 39)])
    for row, number in enumerate(alone):
        assert np.allclose(logits[row], alone[number], atol=CLOSE), number


def test_a_sequence_that_was_freed_is_used_again_and_remembers_nothing(rows: Sequences) -> None:
    first, _ = prompt(rows, [1, 2, 3, 4])
    rows.free(first)
    again, logits = prompt(rows, PROMPT)
    assert again == first
    _, expected = prompt(rows, PROMPT)
    assert np.allclose(logits, expected, atol=CLOSE)


def test_buffers_grow_and_every_sequence_goes_on(rows: Sequences) -> None:
    first, _ = prompt(rows, PROMPT)
    assert (rows.sequences, rows.length) == (sequences.FEWEST_SEQUENCES, sequences.BUFFER_UNIT_TOKENS)
    others = [prompt(rows, PROMPT[:3])[0] for _ in range(sequences.FEWEST_SEQUENCES)]
    assert rows.sequences == 2 * sequences.FEWEST_SEQUENCES
    long, _ = prompt(rows, [number % 48 for number in range(sequences.BUFFER_UNIT_TOKENS + 1)])
    assert rows.length == 2 * sequences.BUFFER_UNIT_TOKENS
    assert rows.nbytes == rows.sequences * rows.length * rows.token_bytes
    for token in (5, 9):
        for sequence, begun in ((first, PROMPT), (others[-1], PROMPT[:3])):
            position = rows._lengths[sequence]
            logits = rows.step([Fed(token, position, sequence)])[0].copy()
            tail = [5, 9][: position - len(begun) + 1]
            again, expected = prompt(rows, [*begun, *tail])
            assert np.allclose(logits, expected, atol=CLOSE)
            rows.free(again)
    rows.free(long)


def test_copies_that_llama_cpp_has_not_made_yet_are_made_before_the_buffers_grow(rows: Sequences) -> None:
    source, _ = prompt(rows, PROMPT)
    copies = [rows.copy(source, len(PROMPT)) for _ in range(sequences.FEWEST_SEQUENCES - 1)]
    rows.free(source)
    copies.append(rows.copy(copies[0], 4))
    copies += [rows.copy(copies[-1], 3) for _ in range(sequences.FEWEST_SEQUENCES)]
    assert rows.sequences == 2 * sequences.FEWEST_SEQUENCES
    _, expected = prompt(rows, [*PROMPT, 5])
    _, short = prompt(rows, [*PROMPT[:3], 5])
    tokens = sorted((Fed(5, rows._lengths[number], number) for number in copies), key=lambda fed: fed.sequence)
    for fed, logits in zip(tokens, rows.step(tokens), strict=True):
        wanted = {len(PROMPT): expected, 3: short}.get(fed.position)
        assert wanted is None or np.allclose(logits, wanted, atol=CLOSE), fed


def test_more_sequences_than_llama_cpp_computes_do_not_fit(rows: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_most", 2)
    rows.take(), rows.take()
    with pytest.raises(OutOfMemory, match="at most 2 sequences"):
        rows.take()


def test_a_context_that_cannot_be_made_is_an_out_of_memory(rows: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows._library, "llama_init_from_model", lambda model, params: None)
    with pytest.raises(OutOfMemory, match="no room for 16 sequences of 256 tokens"):
        rows.take()


@pytest.mark.parametrize(
    ("result", "error", "sentence"),
    [
        (-2, OutOfMemory, "no memory for a step"),
        (1, OutOfMemory, "no memory for a step"),
        (-3, EngineError, "device may be gone"),
    ],
)
def test_a_step_that_fails_is_a_lack_of_memory_or_of_the_device(
    rows: Sequences, monkeypatch: pytest.MonkeyPatch, result: int, error: type[Exception], sentence: str
) -> None:
    sequence, _ = prompt(rows, PROMPT)
    rows._library.reason("")
    monkeypatch.setattr(rows._library, "llama_decode", lambda context, batch: result)
    with pytest.raises(error, match=sentence):
        rows.step([Fed(1, len(PROMPT), sequence)])
