"""Lay out the rollouts of several groups as one sequence of tokens without padding: for each group its prompt, then its
rollouts one after the other; then the next group.

1. Layers that treat each token by itself (linear layers, norms, embeddings, experts) compute every token once, and a
   prompt once for its group. No token is padding.
2. A token attends to the tokens before it in its own rollout, and to the prompt of its group. A token of a prompt
   attends to those before it in the prompt. Positions count from the beginning of the prompt.
3. Attention is computed for several rows at once: rows of one prefix length, alike in length (`AttentionRows`). Shorter
   rows are filled up on the right, where causal attention never looks. Where one call computes all rows
   (engines.transformers.packed_flex), the layout has `masks` instead of `rows`.

Nothing here knows of scoring; engines/transformers/packed_attention.py computes the attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.transformers.packed_flex import TokenMasks

KEYS_AT_ONCE: Final = 2**14
"""Most keys that are copied for the rows of one product; a row alone may have more."""
QUERY_BLOCK: Final = 256
"""Most positions of a row per product: each block of a long row looks only at the keys up to its own end."""


class TokenGroup(NamedTuple):
    """A group as the model is fed it. `rollouts`: the tokens of each, some of which may be empty."""

    prompt: Sequence[int]
    rollouts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class AttentionRows:
    """Rows of one product. `queries`: places of their own tokens, [R, L]. `keys`: places of all that they attend to,
    [R, K]: the prefix, then their own. Fillers repeat a row's last place. `own`: [R, L], False for fillers; None: no
    row has any. `prefix`: number of keys before the row's own."""

    queries: Tensor
    keys: Tensor
    own: Tensor | None
    prefix: int
    _masks: dict[tuple[int, int, int | None], Tensor | None] = field(default_factory=dict, compare=False)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield (queries, keys) of each block of at most `QUERY_BLOCK` positions: slices of L and K."""
        length = self.queries.shape[1]
        for start in range(0, length, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, length)
            yield slice(start, stop), slice(0, self.prefix + stop)

    def mask(self, queries: slice, keys: slice, window: int | None) -> Tensor | None:
        """Return which of `keys` each of `queries` attends to: bool [queries, keys]; None: those up to its own place,
        with as many queries as keys. `window`: most keys that a token attends to, itself included."""
        last = self.prefix + queries.stop - 1
        if window is not None and window > last:
            window = None  # it reaches back to the first token
        mark = (queries.start, queries.stop, window)
        if mark not in self._masks:
            self._masks[mark] = self._mask(queries, keys, window)
        return self._masks[mark]

    def _mask(self, queries: slice, keys: slice, window: int | None) -> Tensor | None:
        if window is None and self.prefix == 0 and queries.start == 0:
            return None
        device = self.queries.device
        at = torch.arange(queries.start, queries.stop, device=device)[:, None] + self.prefix
        before = at - torch.arange(keys.stop, device=device)
        return before >= 0 if window is None else (before >= 0) & (before < window)


class PackedLayout:
    """The layout of some groups. `ids`, `positions`: int64 [1, N]. `rows`, `masks`: rows and masks for the attention;
    with `masks` there are no rows."""

    def __init__(self, groups: Sequence[TokenGroup], device: torch.device, *, one_call: bool = False) -> None:
        ids: list[NDArray[np.int64]] = []
        positions: list[NDArray[np.int64]] = []
        spans: list[tuple[range, range]] = []  # (prefix, own) of each row
        self._prompts: list[range] = []
        self._rollouts: list[list[range]] = []
        end = 0

        def put(tokens: Sequence[int], first: int) -> range:
            nonlocal end
            own = range(end, end + len(tokens))
            ids.append(np.asarray(tokens, np.int64))
            positions.append(np.arange(first, first + len(own)))
            end = own.stop
            return own

        for group in groups:
            prompt = put(group.prompt, 0)
            rollouts = [put(tokens, len(prompt)) for tokens in group.rollouts]
            spans += [(range(0), prompt), *((prompt, own) for own in rollouts if own)]
            self._prompts.append(prompt)
            self._rollouts.append(rollouts)
        self.ids, self.positions = (upload(np.concatenate(part), device)[None] for part in (ids, positions))
        self.rows = [] if one_call else [_rows(part, device) for part in _parts(spans)]
        self.masks = self._masks(device) if one_call else None

    def before(self, group: int, rollout: int, index: int) -> int:
        """Return the place whose output predicts token `index` of a rollout: the place of the token before it."""
        return self._rollouts[group][rollout][index - 1] if index else self._prompts[group][-1]

    def places(self, group: int, rollout: int) -> NDArray[np.int64]:
        """Return `before` of each token of a rollout, and of one more after its end."""
        own = self._rollouts[group][rollout]
        places = np.arange(own.start - 1, own.stop)
        places[0] = self._prompts[group][-1]
        return places

    def _masks(self, device: torch.device) -> TokenMasks:
        rows: list[tuple[int, range]] = []  # (row of its prompt, own) of each row
        for prompt, rollouts in zip(self._prompts, self._rollouts, strict=True):
            number = len(rows)
            rows += [(number, prompt), *((number, own) for own in rollouts)]
        lengths = torch.tensor([len(own) for _, own in rows], device=device)
        numbers, prompts = torch.arange(len(rows), device=device), torch.tensor([of for of, _ in rows], device=device)
        return TokenMasks(
            numbers.repeat_interleave(lengths), prompts.repeat_interleave(lengths), self.positions[0]
        )  # fmt: skip


def _parts(spans: Sequence[tuple[range, range]]) -> Iterator[list[tuple[range, range]]]:
    """Yield rows that share a product: of one prefix length, longest first, with little filling."""
    ordered = sorted(spans, key=lambda span: (len(span[0]), -len(span[1])))
    for prefix, alike in groupby(ordered, key=lambda span: len(span[0])):
        part: list[tuple[range, range]] = []
        filling = 0
        for span in alike:
            longest = len(part[0][1]) if part else len(span[1])
            filling += longest - len(span[1])
            keys = (prefix + longest) * (len(part) + 1)
            if part and (keys > KEYS_AT_ONCE or filling > max(64, longest * (len(part) + 1) // 4)):
                yield part
                part, filling = [], 0
            part.append(span)
        if part:
            yield part


def _rows(part: Sequence[tuple[range, range]], device: torch.device) -> AttentionRows:
    longest = len(part[0][1])
    queries = [[*own, *[own[-1]] * (longest - len(own))] for _, own in part]
    keys = [[*prefix, *row] for (prefix, _), row in zip(part, queries, strict=True)]
    lengths = torch.tensor([len(own) for _, own in part], device=device)
    filled = any(len(own) < longest for _, own in part)
    return AttentionRows(
        queries=torch.tensor(queries, device=device),
        keys=torch.tensor(keys, device=device),
        own=torch.arange(longest, device=device) < lengths[:, None] if filled else None,
        prefix=len(part[0][0]),
    )
