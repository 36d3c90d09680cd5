"""Measure the scorer's rate on groups of mixed lengths against a plain teacher-forced pass over the same tokens.

The anchor is the library's own forward pass, on the same layers (ADR 8), one group at a time. A group is one sequence,
its prompt once, `[prompt | rollout 1 | rollout 2 ...]`, without padding, under a dense mask. The anchor takes the
log-softmax of the scored positions, without noise.

The scorer's rate is measured without noise and gaps, as log-softmax on its own hidden states, and with them, in passes
of one group up to all of them. The claims are for the pass size that the scorer takes by itself. Two more rates are
shown: just after a change of version, which drops the packed copies of the layers, and of padded passes of one group,
which a model without packed passes gets.

Tokens are those of prompts, each once, and completions; rates are per CPU second of one thread.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.harness import bench
from echo2.engines.engine import GroupToScore, Job, Sample

REPEATS: Final = 3
GROUPS: Final = 8
SAMPLES: Final = 8
PROMPT: Final = 64
MOST: Final = 96
"""Most tokens of a completion; the mean is about 50."""
BARE, NOISE, ANCHOR = "scorer without noise", "scorer", "plain pass"


def claims(engine: Any, eos: int) -> list[bench.Claim]:
    """Measure an engine that holds weights, print the table, and return the claims. `eos`: id of the token that ends a
    turn."""
    import torch

    from echo2.engines.transformers import packed_linear

    live = engine._live_model()
    groups = _groups(live.model.config.vocab_size, eos)
    tokens = float(sum(group.tokens for group in groups))
    own = _parts(groups, live.scorer.pass_tokens)
    sizes = {number: [groups[at : at + number] for at in range(0, GROUPS, number)] for number in (1, 2, GROUPS)}

    def work(parts: Sequence[Sequence[GroupToScore]], score: Callable[[Sequence[GroupToScore]], object]) -> float:
        with torch.inference_mode():
            for part in parts:
                score(part)
        return tokens

    def new_version() -> float:
        packed_linear.forget(live.model)
        return work(own, live.scorer.score)

    bare = partial(_bare, live)
    candidates: dict[str, Callable[[], float]] = {
        ANCHOR: partial(work, sizes[1], partial(_plain, live.model)),
        BARE: partial(work, own, bare),
        NOISE: partial(work, own, live.scorer.score),
        "scorer, just after a change of version": new_version,
        "padded, one group at a time": partial(work, sizes[1], partial(_padded, live)),
    }
    for number, parts in sizes.items():
        candidates[f"scorer, groups per pass: {number}"] = partial(work, parts, live.scorer.score)
    _check(live, groups)
    measured = bench.take_turns({name: bench.timed(one) for name, one in candidates.items()}, REPEATS)
    best = max(statistics.median(one.rate for one in measured[name]) for name in measured if "per pass" in name)
    bench.table(
        ("candidate", "tokens per CPU second", "against the anchor", "share of the best pass size"),
        [_row(name, runs, measured[ANCHOR], best) for name, runs in measured.items()],
    )
    print(f"{GROUPS} groups of {SAMPLES}, {int(tokens)} tokens in all; {len(own)} passes by the scorer's own choice\n")
    return [
        bench.Claim(BARE, bench.ratio(measured[BARE], measured[ANCHOR]), ANCHOR, 0.9),
        bench.Claim("scorer with noise and gaps", bench.ratio(measured[NOISE], measured[ANCHOR]), ANCHOR, 0.8),
    ]


def _row(
    name: str, runs: Sequence[bench.Measured], anchor: Sequence[bench.Measured], best: float
) -> tuple[str, float, float, object]:
    rate = statistics.median(one.rate for one in runs)
    share: object = rate / best if name.startswith("scorer") and name != BARE else "-"
    return name, rate, bench.ratio(runs, anchor), share


def _groups(vocabulary: int, eos: int) -> list[GroupToScore]:
    rng = random.Random(1)

    def tokens(number: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(number)]

    def group(index: int) -> GroupToScore:
        lengths = [max(4, min(MOST, int(rng.lognormvariate(0, 0.6) * 45))) for _ in range(SAMPLES)]
        job = Job(
            prompt=tokens(PROMPT), seeds=[rng.randbytes(16) for _ in range(SAMPLES)], limit=MOST, eos=eos,
            task="reverse", task_version=1, split="train", index=index,
        )  # fmt: skip
        return GroupToScore(job, [Sample(tokens=tokens(one), turns=[one], logprobs=[]) for one in lengths])

    return [group(index) for index in range(GROUPS)]


def _parts(groups: Sequence[GroupToScore], most: int) -> list[Sequence[GroupToScore]]:
    """Cut groups into the passes that a child's queue makes of them (engines/process/score_queue.py)."""
    parts: list[list[GroupToScore]] = []
    for group in groups:
        if parts and sum(one.tokens for one in parts[-1]) + group.tokens <= most:
            parts[-1].append(group)
        else:
            parts.append([group])
    return [*parts]


def _logprobs(model: Any, hidden: Any, places: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """Return the log-softmax at the scored places, 64 at a time."""
    import torch

    values: list[float] = []
    for start in range(0, len(places), 64):
        logits = model.get_output_embeddings()(hidden[list(places[start : start + 64])]).float()
        ids = torch.tensor(tokens[start : start + 64])[:, None]
        values += (logits.gather(1, ids)[:, 0] - logits.logsumexp(-1)).tolist()
    return values


def _plain(model: Any, groups: Sequence[GroupToScore]) -> list[float]:
    """Run the anchor on one group."""
    import torch

    (group,) = groups
    ids, positions, rollouts = list(group.job.prompt), list(range(PROMPT)), [0] * PROMPT
    places: list[int] = []
    for number, sample in enumerate(group.samples, 1):
        length = len(sample.tokens) - 1
        places += [PROMPT - 1, *range(len(ids), len(ids) + length)]
        ids += sample.tokens[:-1]
        positions += range(PROMPT, PROMPT + length)
        rollouts += [number] * length
    of, at = torch.tensor(rollouts), torch.tensor(positions)
    mask = ((of[None] == 0) | (of[None] == of[:, None])) & (at[None] <= at[:, None])
    output = model.base_model(
        torch.tensor([ids]), position_ids=at[None], attention_mask=mask[None, None], use_cache=False
    )
    tokens = [token for sample in group.samples for token in sample.tokens]
    return _logprobs(model, output.last_hidden_state[0], places, tokens)


def _padded(live: Any, groups: Sequence[GroupToScore]) -> object:
    from echo2.engines.transformers.padded_scoring import score_padded
    from echo2.engines.transformers.token_scores import TokenScores

    (group,) = groups
    return score_padded(live.model, TokenScores(live.model), *group)


def _bare(live: Any, groups: Sequence[GroupToScore]) -> list[float]:
    """Run the scorer's pass, with log-softmax alone in place of log-probability, margin and gap."""
    import torch

    from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup

    layout = PackedLayout(
        [TokenGroup(job.prompt, [one.tokens[:-1] for one in samples]) for job, samples in groups], torch.device("cpu")
    )
    places = [
        place
        for number, group in enumerate(groups)
        for row in range(len(group.samples))
        for place in layout.places(number, row).tolist()
    ]
    tokens = [token for group in groups for sample in group.samples for token in sample.tokens]
    return _logprobs(live.model, live.scorer._packed.hidden_states(layout), places, tokens)


def _check(live: Any, groups: Sequence[GroupToScore]) -> None:
    """Assert that all candidates compute the same log-probabilities."""
    import torch

    with torch.inference_mode():
        (scores,) = live.scorer.score(groups[:1])
        ours = np.concatenate([score.logprobs for score in scores])
        assert live.scorer._packed is not None
        assert np.abs(ours - _plain(live.model, groups[:1])).max() < 1e-3
        assert np.abs(ours - _bare(live, groups[:1])).max() < 1e-3
