"""Score groups by teacher-forced passes: log-probability and margin of each sampled token.

1. Groups share packed passes of at most `PASS_TOKENS` tokens (on a GPU rule 5), without padding, each prompt once
   (engines.transformers.packed_layout). A group's scores do not depend on its neighbours, but for rounding.
2. A group of more tokens, and every group of a model that packed passes do not compute rightly, is scored alone by the
   library's own pass (engines.transformers.padded_scoring). Whether they do is checked once per model, at the first
   group.
3. A group that does not fit its job or the model takes part in no pass. If a pass fails, each of its groups is scored
   alone, so that an error is the outcome of the group that causes it, and of no other. Where the device failed, no
   group has an outcome: the process ends (`ProgramLost`).
4. Tokens that the environment gave are fed to the model, and get no value.
5. On a GPU a pass has as many tokens as its free memory allows, and at most half of what did not fit.
6. A pass has groups of jobs with `tf32`, or groups of jobs without. The former is computed in TF32, the output layer
   included, where the device has it and packed passes hold in it (engines.transformers.tf32). Nothing else is.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final

import structlog
import torch

from echo2.engines.batch.input_check import check_job, check_samples
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.engine import EngineError, GroupToScore, NoMemory, SampleScore
from echo2.engines.transformers.device_memory import free_memory
from echo2.engines.transformers.lost_device import lost_device
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.engines.transformers.packed_layout import TokenGroup
from echo2.engines.transformers.padded_scoring import score_padded
from echo2.engines.transformers.tf32 import Tf32, tf32_of
from echo2.engines.transformers.token_scores import TokenScores, sampled_tokens_of

PASS_TOKENS: Final = 2**14
"""Most tokens of one packed pass on a CPU."""
LEAST_PASS, MOST_PASS = 2**11, 2**17
"""Bounds of the same on a GPU, where the memory at hand decides."""
MEMORY_SHARE: Final = 0.5
"""The part of a GPU's free memory that a pass may take."""
ENOUGH_ON_CPU: Final = 2**11
"""Tokens above which a pass on a CPU takes in no further group: the rate rises no more, and verdicts would wait."""
NO_ROOM: Final = (
    "the device has no memory left to score a group of {tokens:,} tokens: end other programs that use it, or choose "
    "another in scorer.devices"
)
TF32_TOLERANCE: Final = 2e-2
"""Part of the greatest hidden state by which a packed pass in TF32 may differ from the model's own."""

Outcome = list[SampleScore] | Exception

_log = structlog.get_logger("engines")


class GroupScorer:
    """Scores groups under a model."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        self._model = model
        self._vocabulary: int = model.config.get_text_config().vocab_size
        self._token_scores = TokenScores(model)
        self._fitting = MOST_PASS
        """Most tokens of a pass that the last out-of-memory leaves."""

    @property
    def pass_tokens(self) -> int:
        """Return the number of tokens that one pass should have."""
        return ENOUGH_ON_CPU if self._on_cpu else self._most()

    @property
    def _on_cpu(self) -> bool:
        return bool(self._model.device.type == "cpu")

    def _most(self) -> int:
        """Return the most tokens of a pass (rule 5)."""
        if self._on_cpu:
            return PASS_TOKENS
        at_hand = int(MEMORY_SHARE * free_memory(self._model.device)) // token_bytes(self._model.config)
        return max(LEAST_PASS, min(at_hand, self._fitting))

    @torch.inference_mode()
    def score(self, groups: Sequence[GroupToScore]) -> list[Outcome]:
        """See `engines.engine.ScoresTogether.score_groups`."""
        outcomes: dict[int, Outcome] = {}
        sound: list[int] = []
        for index, group in enumerate(groups):
            try:
                check_job(group.job, self._vocabulary)
                check_samples(group.job, group.samples, self._vocabulary)
                sound.append(index)
            except EngineError as error:
                outcomes[index] = error
        for part in _passes(groups, sorted(sound, key=lambda index: groups[index].job.tf32), self._most()):
            outcomes.update(zip(part, self._together([groups[index] for index in part]), strict=True))
        return [outcomes[index] for index in range(len(groups))]

    @cached_property
    def _packed(self) -> PackedPass | None:
        packed = PackedPass.of(self._model)
        if packed is None:
            why = "packed passes do not give what this model's own passes give"
            _log.warning("groups are scored one by one, with padding", model=type(self._model).__name__, why=why)
        return packed

    @cached_property
    def _tf32(self) -> Tf32:
        """The context of a pass in TF32; one that changes nothing, where there is none (rule 6)."""
        tf32 = tf32_of(self._model.device, os.environ)
        if tf32 is None or self._packed is None:
            return tf32 or nullcontext
        with tf32():
            if self._packed.equals_own(TF32_TOLERANCE):
                return tf32
        why = "packed passes in TF32 do not give what this model's own passes give"
        _log.warning("groups of 16-bit classes are scored in float32", model=type(self._model).__name__, why=why)
        return nullcontext

    def _together(self, groups: Sequence[GroupToScore]) -> list[Outcome]:
        """Score groups in one pass; after an error in a pass of several, each alone (rule 3)."""
        try:
            return [*self._pass(groups)]
        except torch.OutOfMemoryError as error:
            tokens = sum(group.tokens for group in groups)
            fault: Exception = NoMemory(f"{NO_ROOM.format(tokens=tokens)} ({error})")
            self._fitting = max(LEAST_PASS, tokens // 2)
        except Exception as error:  # whatever it is, the parent must know whose it is
            if why := lost_device(error):
                raise ProgramLost(why) from error
            fault = error.with_traceback(None)  # its frames would keep the tensors of the pass
        return [fault] if len(groups) == 1 else [outcome for group in groups for outcome in self._together([group])]

    def _pass(self, groups: Sequence[GroupToScore]) -> list[list[SampleScore]]:
        """Score groups that are alike in `tf32`."""
        packed = self._packed  # checked in float32
        with self._tf32() if groups[0].job.tf32 else nullcontext():
            return self._scores(packed, groups)

    def _scores(self, packed: PackedPass | None, groups: Sequence[GroupToScore]) -> list[list[SampleScore]]:
        most = max(PASS_TOKENS, self._most())
        if packed is None or any(group.tokens > most for group in groups):
            return [score_padded(self._model, self._token_scores, *group) for group in groups]
        layout = packed.layout([_fed_tokens(group) for group in groups])
        tokens = [
            sampled_tokens_of(sample, seed, layout.places(number, row), job.temperature)
            for number, (job, samples) in enumerate(groups)
            for row, (seed, sample) in enumerate(zip(job.seeds, samples, strict=True))
        ]
        scores = iter(self._token_scores.of(packed.hidden_states(layout), tokens))
        return [[next(scores) for _ in group.samples] for group in groups]


def token_bytes(config: Any) -> int:
    """Estimate the memory of a token in a pass of a text model's config: what one layer computes of it, in float32."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(4 * (8 * text.hidden_size + 6 * heads * size + 4 * (getattr(text, "intermediate_size", None) or 0)))


def _passes(groups: Sequence[GroupToScore], numbers: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the groups of `numbers` that share a pass (rules 1, 2 and 6)."""
    part: list[int] = []
    total = 0
    for number in numbers:
        tokens = groups[number].tokens
        if part and (total + tokens > most or groups[number].job.tf32 != groups[part[0]].job.tf32):
            yield part
            part, total = [], 0
        part.append(number)
        total += tokens
    if part:
        yield part


def _fed_tokens(group: GroupToScore) -> TokenGroup:
    """Return what the model is fed: all tokens but the last of each sample, which predicts nothing."""
    return TokenGroup(group.job.prompt, [sample.tokens[:-1] for sample in group.samples])
