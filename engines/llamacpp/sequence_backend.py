"""Compute the rows of engines.batch.continuous_batch with llama.cpp: each row is a sequence.

Rules
1. A prompt is computed into a sequence that its first row then goes on with; further rows get copies of the prompt's
   part. Until all rows of a prompt have their places, one sequence keeps its part.
2. A place is a number of the caller's; when a row changes its place, its sequence stays where it is.
3. A sequence with values that are not finite is not used again before the buffers are freed: they would spread to the
   next row.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from echo2.engines.batch.continuous_batch import Chosen, FirstToken, NextToken
from echo2.engines.batch.row_limit import Memory
from echo2.engines.llamacpp.row_choice import RowChoice
from echo2.engines.llamacpp.sequences import MOST_BATCH_TOKENS, Fed, Sequences

Floats = NDArray[np.float32]
ROW_ARRAYS: Final = 4
"""Arrays of a vocabulary's size per row: logits, twice, and what the choice of a token needs."""


class KeptPrompt:
    """A prompt whose first `length` tokens are computed into `sequence`. `logits`: logits after the last of them.
    `shared`: whether a row goes on in this sequence."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.length = 0
        self.logits: Floats | None = None
        self.shared = False


class SequenceBackend:
    """`engines.batch.continuous_batch.Backend`."""

    overlap = False

    def __init__(self, sequences: Sequences, vocabulary: int, free: Callable[[], int], threads: int = 1) -> None:
        """`free`: returns the free bytes of the device. `threads`: threads that choose tokens."""
        self._sequences, self._vocabulary, self._free = sequences, vocabulary, free
        self._choice = RowChoice(threads)
        self._places: list[int] = []
        """Place -> sequence."""
        self._kept: dict[int, KeptPrompt] = {}
        """Sequence -> the prompt whose part it keeps."""
        self._spoiled: set[int] = set()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[KeptPrompt]:
        """See `Backend.prefill`."""
        computed = []
        for tokens in prompts:
            prompt = KeptPrompt(self._sequences.take())
            self._kept[prompt.sequence] = prompt
            self.extend(prompt, tokens)
            computed.append(prompt)
        return computed

    def extend(self, prompt: KeptPrompt, tokens: Sequence[int]) -> None:
        """See `Backend.extend`."""
        for start in range(0, len(tokens), MOST_BATCH_TOKENS):
            part = tokens[start : start + MOST_BATCH_TOKENS]
            logits = self._sequences.feed(
                [
                    Fed(token, prompt.length + number, prompt.sequence, wanted=number == len(part) - 1)
                    for number, token in enumerate(part)
                ]
            )
            prompt.length += len(part)
        prompt.logits = logits[0].copy()

    def release(self, prompt: KeptPrompt) -> None:
        """See `Backend.release`."""
        del self._kept[prompt.sequence]
        if not prompt.shared:
            self._sequences.free(prompt.sequence)

    def decode(self, rows: Sequence[NextToken], first: Sequence[FirstToken[KeptPrompt]]) -> Callable[[], Chosen]:
        """See `Backend.decode`. The tokens are there at once."""
        tokens, logprobs = self._step(rows) if rows else ([], [])
        for new in first:
            self._places.append(self._sequence_for(new.prompt))
            token, logprob = self._first(new)
            tokens.append(token)
            logprobs.append(logprob)
        chosen = Chosen(tokens, logprobs)
        return lambda: chosen

    def resume(self, prompt: KeptPrompt) -> None:
        """See `Backend.resume`."""
        self._places.append(self._sequence_for(prompt))

    def park(self, place: int, length: int) -> KeptPrompt:
        """See `Backend.park`. The row's sequence is the prompt's from now on, unless it is shared (rule 1)."""
        sequence = self._places[place]
        if sequence in self._kept:
            sequence = self._sequences.copy(sequence, length)
        else:
            self._sequences.cut(sequence, length)
        parked = KeptPrompt(sequence)
        parked.length = length
        self._kept[sequence] = parked
        return parked

    def vacate(self, place: int, last: int) -> None:
        """See `Backend.vacate`."""
        sequence, self._places[place] = self._places[place], self._places[last]
        self._places.pop()
        prompt = self._kept.get(sequence)
        if prompt is not None:
            self._sequences.cut(sequence, prompt.length)
            prompt.shared = False
        elif sequence not in self._spoiled:
            self._sequences.free(sequence)
        if not self._places and not self._kept and self._spoiled:
            self.reset()

    def clean(self, place: int) -> None:
        """See `Backend.clean` (rule 3)."""
        self._spoiled.add(self._places[place])

    def reset(self) -> None:
        """See `Backend.reset`."""
        self._places, self._kept, self._spoiled = [], {}, set()
        self._sequences.reset()

    def memory(self) -> Memory:
        """See `Backend.memory`."""
        at_hand = self._free() + self._sequences.nbytes
        return Memory(at_hand, self._sequences.token_bytes, ROW_ARRAYS * 4 * self._vocabulary)

    def _sequence_for(self, prompt: KeptPrompt) -> int:
        """Return the sequence of a new row (rule 1)."""
        if prompt.shared:
            return self._sequences.copy(prompt.sequence, prompt.length)
        prompt.shared = True
        return prompt.sequence

    def _step(self, rows: Sequence[NextToken]) -> tuple[list[int], list[float]]:
        order = sorted(range(len(rows)), key=lambda row: self._places[row])
        logits = self._sequences.step(
            [Fed(rows[row].token or 0, rows[row].position, self._places[row]) for row in order]
        )
        tokens, logprobs = [0] * len(rows), [0.0] * len(rows)
        for greedy, temperature in {(row.greedy, row.temperature) for row in rows}:
            drawn = greedy, temperature
            some = [n for n, row in enumerate(order) if (rows[row].greedy, rows[row].temperature) == drawn]
            picked = logits if len(some) == len(rows) else logits[some]
            pairs = [(rows[order[number]].seed, rows[order[number]].number) for number in some]
            chosen = self._choice.choose(picked, pairs, greedy=greedy, temperature=temperature)
            for number, token, logprob in zip(some, *chosen, strict=True):
                tokens[order[number]], logprobs[order[number]] = token, logprob
        return tokens, logprobs

    def _first(self, new: FirstToken[KeptPrompt]) -> tuple[int, float]:
        assert new.prompt.logits is not None
        (token,), (logprob,) = self._choice.choose(
            new.prompt.logits[None], [(new.seed, new.number)], greedy=new.greedy, temperature=new.temperature
        )
        return token, logprob
