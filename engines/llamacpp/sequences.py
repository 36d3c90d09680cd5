"""Sequences of tokens in one llama_context: their keys and values, and the logits after the tokens fed to them.

Rules
1. Each sequence has a buffer of its own, so that a step costs no attention across sequences, and a copy of a sequence
   is a copy of its buffer.
2. llama.cpp computes sequences together whose numbers follow each other. A hole of at most `HOLE` is fed a token that
   nobody reads: reading the weights once more costs more.
3. Keys and values are float32 where the weights are, else float16; attention is not fused in float32.
4. The buffers grow by moving the sequences into a larger context. Where that does not fit: `OutOfMemory`.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.engines.batch.continuous_batch import OutOfMemory
from echo2.engines.engine import Dtype, EngineError
from echo2.engines.llamacpp import builds
from echo2.engines.llamacpp.casts import GGML_TYPES
from echo2.engines.llamacpp.library import INSTALL, TokenBatch
from echo2.engines.llamacpp.resident_model import ResidentModel

HOLE: Final = 12
BUFFER_UNIT_TOKENS: Final = 256
"""Tokens by which a sequence's buffer grows: llama.cpp's own unit."""
FEWEST_SEQUENCES: Final = 16
MOST_BATCH_TOKENS: Final = 512
"""Most tokens that are computed at once."""
_STATE_HEAD: Final = 12
"""Bytes at the beginning of a state, of which 4 are the number of sequences."""
_NO_MEMORY: Final = (1, -2)
"""Results of llama_decode: no place in the buffer, no memory."""


class Fed(NamedTuple):
    """A token that is fed to a sequence. `wanted`: whether the logits after it are read."""

    token: int
    position: int
    sequence: int
    wanted: bool = True


class Sequences:
    """`sequences`: how many there are room for. `length`: tokens that each has room for."""

    def __init__(
        self, model: ResidentModel, dtype: Dtype, threads: int, *, begun: Callable[[int], None] = lambda context: None
    ) -> None:
        """`begun`: called with each new llama_context."""
        self._begun = begun
        self._model, self._library = model, model.library
        self._dtype, self._threads = dtype, threads
        self._most = int(self._library.llama_max_parallel_sequences())
        self._context: int | None = None
        self._lengths: dict[int, int] = {}
        """Sequence in use -> its tokens."""
        self._copied = False
        """Whether copies are outstanding: llama.cpp makes them at the beginning of the next step."""
        self.sequences, self.length = 0, 0

    @property
    def token_bytes(self) -> int:
        """Bytes of keys and values of one token."""
        return self._model.architecture.cached * (4 if self._dtype == "float32" else 2)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.sequences * self.length * self.token_bytes

    def take(self) -> int:
        """Return a sequence that is not in use, the lowest; it is in use and empty then. Raises `OutOfMemory`."""
        number = next(number for number in range(len(self._lengths) + 1) if number not in self._lengths)
        if number >= self._most:
            raise OutOfMemory(f"llama.cpp computes at most {self._most} sequences at once")
        if number >= self.sequences:
            self._grow(min(self._most, max(FEWEST_SEQUENCES, 2 * self.sequences)), max(BUFFER_UNIT_TOKENS, self.length))
        self._cut(number, 0)
        self._lengths[number] = 0
        return number

    def free(self, sequence: int) -> None:
        """End the use of a sequence."""
        self._cut(sequence, 0)
        del self._lengths[sequence]

    def copy(self, source: int, length: int) -> int:
        """Return a new sequence with the first `length` tokens of `source`. Raises `OutOfMemory`."""
        sequence = self.take()
        self._library.llama_memory_seq_cp(self._memory(), source, sequence, -1, -1)
        self._lengths[sequence], self._copied = self._lengths[source], True
        self.cut(sequence, length)
        return sequence

    def cut(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence."""
        if length < self._lengths[sequence]:
            self._cut(sequence, length)
            self._lengths[sequence] = length

    def step(self, tokens: Sequence[Fed]) -> NDArray[np.float32]:
        """Feed one token to each of some sequences, in ascending order of their numbers; as `feed` (rule 2)."""
        filled: list[Fed] = []
        for token in tokens:
            hole = range(filled[-1].sequence + 1 if filled else token.sequence, token.sequence)
            if len(hole) <= HOLE and not any(number in self._lengths for number in hole):
                for number in hole:
                    self._cut(number, 0)
                    filled.append(Fed(0, 0, number, wanted=False))
            filled.append(token)
        return self.feed(filled)

    def feed(self, tokens: Sequence[Fed]) -> NDArray[np.float32]:
        """Feed tokens; return the logits that are wanted, [n, V], in order: memory of the library, good until the next
        call. Raises `OutOfMemory`, EngineError."""
        longest = max(token.position for token in tokens) + 1
        if longest > self.length:
            self._grow(self.sequences, max(2 * self.length, -(-longest // BUFFER_UNIT_TOKENS) * BUFFER_UNIT_TOKENS))
        for token in tokens:
            if token.sequence in self._lengths:
                self._lengths[token.sequence] = token.position + 1
        self._decode(tokens)
        wanted = sum(token.wanted for token in tokens)
        pointer = self._library.llama_get_logits(self._context) if wanted else None
        if not pointer:
            return np.empty((0, self._model.vocabulary), np.float32)
        values = np.ctypeslib.as_array((ctypes.c_float * (wanted * self._model.vocabulary)).from_address(pointer))
        return values.reshape(wanted, self._model.vocabulary)

    def reset(self) -> None:
        """Free all buffers."""
        if self._context is not None:
            self._library.llama_free(self._context)
        self._context, self._lengths, self.sequences, self.length = None, {}, 0, 0
        self._copied = False

    # --- one step

    def _decode(self, tokens: Sequence[Fed]) -> None:
        table = np.array([(one.token, one.position, one.sequence, one.wanted) for one in tokens], np.int32)
        columns = [np.ascontiguousarray(column) for column in table.T]
        counts, wanted = np.ones(len(tokens), np.int32), columns[3].astype(np.int8)
        places = (columns[2].ctypes.data + 4 * np.arange(len(tokens))).astype(np.uint64)
        batch = TokenBatch(
            len(tokens), columns[0].ctypes.data, None, columns[1].ctypes.data, counts.ctypes.data, places.ctypes.data,
            wanted.ctypes.data,
        )  # fmt: skip
        result = self._library.llama_decode(self._context, batch)
        self._copied = False
        if result in _NO_MEMORY:
            raise OutOfMemory(self._library.reason("llama.cpp found no memory for a step"))
        if result:
            why = self._library.reason(f"llama_decode returned {result}")
            raise EngineError(f"llama.cpp cannot go on ({why}): the device may be gone; check its driver")

    # --- buffers

    def _memory(self) -> int:
        memory: int = self._library.llama_get_memory(self._context)
        return memory

    def _cut(self, sequence: int, length: int) -> None:
        self._library.llama_memory_seq_rm(self._memory(), sequence, length, -1)

    def _grow(self, sequences: int, length: int) -> None:
        """Move all sequences into a context with more room (rule 4)."""
        self._make_copies()
        lengths, states = self._lengths, {number: self._saved_state(number, sequences) for number in self._lengths}
        self.reset()
        library = self._library
        kind = GGML_TYPES["float32" if self._dtype == "float32" else "float16"]
        params = builds.context_params(
            library.llama_context_default_params(), library.layout, n_ctx=sequences * length, n_batch=MOST_BATCH_TOKENS,
            n_ubatch=MOST_BATCH_TOKENS, n_seq_max=sequences, n_threads=self._threads, n_threads_batch=self._threads,
            flash_attn_type=0 if self._dtype == "float32" else -1, type_k=kind, type_v=kind,
            offload_kqv=self._model.handle is not None, op_offload=self._model.handle is not None, kv_unified=False,
        )  # fmt: skip
        context = library.llama_init_from_model(self._model.pointer, params)
        if not context:
            raise OutOfMemory(library.reason(f"no room for {sequences} sequences of {length} tokens"))
        self._context, self.sequences, self.length, self._lengths = context, sequences, length, lengths
        self._begun(context)
        for number, state in states.items():
            if len(state) and not library.llama_state_seq_set_data(context, state.ctypes.data, len(state), number):
                raise OutOfMemory(library.reason("a sequence cannot be moved"))

    def _make_copies(self) -> None:
        """Have outstanding copies made, by a token that is taken back."""
        if self._copied:
            number = min(self._lengths, key=lambda number: self._lengths[number])
            length = self._lengths[number]
            self._decode([Fed(0, length, number, wanted=False)])
            self._cut(number, length)

    def _saved_state(self, sequence: int, sequences: int) -> NDArray[np.uint8]:
        """Return a sequence's state for a context of `sequences`. Raises EngineError.

        llama.cpp writes the number of sequences into it and then, for each, how many tokens it has of this one: a
        larger context wants that number, and a 0 more for each sequence more."""
        if not self._lengths[sequence]:
            return np.empty(0, np.uint8)
        state = np.zeros(
            self._library.llama_state_seq_get_size(self._context, sequence) + 4 * (sequences - self.sequences), np.uint8
        )
        self._library.llama_state_seq_get_data(self._context, state.ctypes.data, len(state), sequence)
        head = state[:_STATE_HEAD].view(np.uint32)
        if (head == self.sequences).sum() != 1:
            raise EngineError(f"this llama.cpp writes its state in another form: {INSTALL}")
        head[head == self.sequences] = sequences
        return state
