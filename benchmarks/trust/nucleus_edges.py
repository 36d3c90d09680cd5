"""Measure the tokens at the edge of a nucleus, where engine and scorer cannot agree on who is inside:
`python -m benchmarks.trust.nucleus_edges [--quick]`. No bar is set: the figures are those of a decision
(docs/adr/0091-no-top-p.md).

M(v) is the mass of the tokens more probable than v; v is inside where M(v) < p. A scorer in float32 and an engine in 16
bits differ in M by at most d, so v is on the edge where p - d <= M(v) < p + d. Here d is `ALLOWANCE` times the greatest
difference at any token with M within `NEAR` of p. A position has a free choice where a token on the edge has the
greatest score of all that are inside or on the edge: a node may then submit that token, or the best of those inside,
and both are right.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.harness import bench
from benchmarks.trust import forced_tokens
from benchmarks.trust.forced_tokens import LIMIT, SMOLLM2_SHAPE, TASK, TEXT
from benchmarks.trust.scaled_noise import ModelPair, logits_after, seeds_of
from echo2.coordinator.learner.model import evaluating
from echo2.coordinator.verification.calibration import NOISE_ALLOWANCE
from echo2.engines.engine import Dtype
from echo2.engines.sampling import sampling

NUCLEUS: Final = 0.95
ALLOWANCE: Final = NOISE_ALLOWANCE
NEAR: Final = 0.04
ROWS: Final = 128
SHAPE_STEPS: Final = 8
QUICK_STEPS: Final = 25
FORMATS: Final[tuple[Dtype, ...]] = ("bfloat16", "float16")


class Position(NamedTuple):
    """The rows of one step: masses M of each token by scorer and engine, probabilities by the scorer, and scores of the
    scorer, float32 [R, V]. `live`: rows that go on."""

    scorer: Tensor
    engine: Tensor
    chances: Tensor
    scores: Tensor
    live: Tensor


def measure(folder: Path, *, quick: bool) -> None:
    """Print the edge of each model and format."""
    rows = []
    for dtype in FORMATS:
        demo = forced_tokens.make_pair(folder / "demo", dtype, steps=QUICK_STEPS if quick else None)
        groups = 4 if quick else 32
        work = [
            ([list(TASK.episode("train", first * ROWS + row, TEXT).prompt) for row in range(ROWS)], f"edge/{first}")
            for first in range(groups)
        ]
        rows.append(["the demo's", dtype, *_edge([one for part in work for one in _positions(demo, *part, LIMIT)])])
        if not quick:
            rows.append(["SmolLM2's shape", dtype, *_edge(list(_shaped(dtype)))])
    heads = ["model", "format", "positions", "d", "on the edge", "their mass", "free choices", "64 tokens with one"]
    bench.table(heads, rows)


def _shaped(dtype: Dtype) -> Iterator[Position]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    pair = ModelPair.of(evaluating(LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE))), dtype, 0)
    for first in range(2):
        prompts = [
            [5 + (row * 7 + place * place * 13 + first) % 49_000 for place in range(4)] for row in range(ROWS // 4)
        ]
        yield from _positions(pair, prompts, f"shape/{first}", SHAPE_STEPS)


@torch.inference_mode()
def _positions(pair: ModelPair, prompts: Sequence[Sequence[int]], name: str, limit: int) -> Iterator[Position]:
    """Yield the steps of a rollout per prompt, each of the scorer's choice in its nucleus. Prompts have one length."""
    caches: tuple[Any, Any] = DynamicCache(), DynamicCache()
    fed, live, seeds = torch.tensor(prompts), torch.ones(len(prompts), dtype=torch.bool), seeds_of(name, len(prompts))
    for place in range(limit):
        exact, rough = logits_after(pair.exact, fed, caches[0]), logits_after(pair.rough, fed, caches[1])
        scores = sampling.add_noise_of(exact.clone(), sampling.keys([(seed, place) for seed in seeds]))
        position = Position(_masses(exact), _masses(rough), exact.softmax(-1), scores, live)
        yield position
        fed = torch.where(position.scorer < NUCLEUS, scores, -torch.inf).argmax(-1)[:, None]
        live = live & (fed[:, 0] != pair.eos)
        if not live.any():
            return


def _masses(logits: Tensor) -> Tensor:
    """Return the mass of the more probable tokens of each token, float32 [R, V]."""
    chances, places = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
    above = chances.cumsum(-1, dtype=torch.float64) - chances
    return torch.empty_like(logits).scatter_(-1, places, above.float())


def _edge(positions: Sequence[Position]) -> list[object]:
    """Return positions, d, tokens on the edge and their mass per position, shares of positions with a free choice and
    of rollouts of 64 tokens with one."""
    apart = [(one.scorer - one.engine).abs()[(one.scorer - NUCLEUS).abs() <= NEAR] for one in positions]
    d = ALLOWANCE * max(float(one.max()) for one in apart if len(one))
    count, tokens, mass, free = 0, 0.0, 0.0, 0
    for one in positions:
        edge = (one.scorer >= NUCLEUS - d) & (one.scorer < NUCLEUS + d)
        able = torch.where(one.scorer < NUCLEUS + d, one.scores, -torch.inf).argmax(-1)
        free += int((edge.gather(1, able[:, None])[:, 0] & one.live).sum())
        count += int(one.live.sum())
        tokens += float(edge.sum(-1)[one.live].sum())
        mass += float((one.chances * edge).sum(-1)[one.live].sum())
    share = free / count
    return [count, d, tokens / count, mass / count, share, 1 - (1 - share) ** 64]


def main() -> None:
    """Run the measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust.nucleus_edges", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the demo's model alone, hardly trained, fewer positions")
    order = parser.parse_args()
    bench.one_thread()
    bench.header("edge of a nucleus", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), quick=order.quick)


if __name__ == "__main__":
    main()
