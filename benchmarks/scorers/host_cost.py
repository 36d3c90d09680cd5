"""Measure what the host does for a token that a scorer scores, beside the model's pass and the products of its head.

The vocabulary has 64 tokens and a hidden state 8 values, so that what is measured is Python, the making of tensors and
the dispatch of PyTorch's operations: on a GPU all that a CPU has to do. It is the time of one thread.
"""

import itertools
import time
from types import SimpleNamespace
from typing import Final

from echo2.engines.engine import Sample

VOCABULARY: Final = 64
WIDTH: Final = 8
ROLLOUTS: Final = 8
PROMPT: Final = 200
REPEATS: Final = 5


def host_cost(tokens: int) -> dict[str, float]:
    """Return the CPU microseconds per sampled token of each part, the least of some runs. `tokens`: number of
    tokens in each rollout."""
    import torch

    torch.set_num_threads(1)
    runs = [_once(tokens) for _ in range(REPEATS)]
    return {part: min(run[part] for run in runs) for part in runs[0]}


def _once(tokens: int) -> dict[str, float]:
    import torch

    from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup
    from echo2.engines.transformers.token_scores import TokenScores, sampled_tokens_of

    ids = [1 + place % (VOCABULARY - 4) for place in range(tokens)]
    samples = [Sample(tokens=ids, turns=[tokens], logprobs=[]) for _ in range(ROLLOUTS)]
    text = SimpleNamespace(vocab_size=VOCABULARY)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False)
    model = SimpleNamespace(
        get_output_embeddings=lambda: head, config=SimpleNamespace(get_text_config=lambda: text)
    )  # fmt: skip
    hidden, scores = torch.randn(ROLLOUTS * tokens + PROMPT, WIDTH), TokenScores(model)
    times = [time.thread_time()]
    group = TokenGroup([1] * PROMPT, [one.tokens[:-1] for one in samples])
    layout = PackedLayout([group], torch.device("cpu"), one_call=True)
    times.append(time.thread_time())
    sampled = [
        sampled_tokens_of(one, b"%016d" % number, layout.places(0, number)) for number, one in enumerate(samples)
    ]
    times.append(time.thread_time())
    with torch.inference_mode():
        scores.of(hidden, sampled)
    times.append(time.thread_time())
    each = [1e6 * (end - begin) / (ROLLOUTS * tokens) for begin, end in itertools.pairwise(times)]
    return dict(zip(("layout", "list of tokens", "head"), each, strict=True))
