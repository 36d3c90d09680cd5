"""How many tokens does a node generate per CPU second? `python -m benchmarks.rollout [--quick]`

Claim: a group of 8 with seeded sampling and exact log-probabilities costs no more CPU time than the same decode loop
with plain `torch.multinomial`, and less than `transformers.generate` with log-probabilities; and checking the group
(teacher-forced log-probabilities and the seeded choice of every token) costs at most half of generating it.

The model has SmolLM2-135M's shape and random weights (speed does not depend on their values), float32, one thread. The
first subject is the engine alone; each of `SUBJECTS` is measured by the same anchors.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import bench

bench.one_thread()

import torch  # noqa: E402
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: E402

from engines.engine import Job  # noqa: E402
from engines.transformers import TransformersEngine  # noqa: E402
from tasks import text  # noqa: E402
from weights.snapshot import Snapshot  # noqa: E402
from weights.tensors import load_into, save_model  # noqa: E402

GROUP = 8
PROMPT = 38  # tokens
MULTINOMIAL, GENERATE = "decode loop with torch.multinomial", "transformers.generate with log-probs"
CHECKING = "checking, T1 + T2"
BARS = {MULTINOMIAL: 0.95, GENERATE: 1.10}


class Setup(NamedTuple):
    """A model on disk, and the group that every candidate generates. `snapshot`: bf16."""

    folder: Path
    snapshot: Path
    job: Job


Work = Callable[[], float]
"""Generates the group once and returns the tokens that count: for a whole node, those accepted."""


def prepare(folder: Path, new_tokens: int) -> Setup:
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True, rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": 1e5, "rope_type": "default"}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    config.save_pretrained(folder)
    text.char_tokenizer().save(str(folder / "tokenizer.json"))
    snapshot = save_model(LlamaForCausalLM(config), folder / "base.snapshot")
    job = Job(
        prompt=[2 + 97 * place % 49_000 for place in range(PROMPT)],
        seeds=[b"rollout benchmark"[:15] + bytes([sample]) for sample in range(GROUP)],
        limit=new_tokens, eos=text.EOS, task="reverse", task_version=1, split="train", index=0,
    )  # fmt: skip
    return Setup(folder, snapshot.path, job)


def engine(setup: Setup) -> Work:
    held = TransformersEngine()
    held.load(setup.folder, setup.snapshot)
    return lambda: float(sum(len(sample.logprobs) for sample in held.generate(setup.job)))


def checking(setup: Setup) -> Work:
    held = TransformersEngine()
    held.load(setup.folder, setup.snapshot)
    samples = held.generate(setup.job)
    return lambda: float(sum(len(score.logprobs) for score in held.score(setup.job, samples)))


SUBJECTS: dict[str, Callable[[Setup], Work]] = {"engine": engine}


def plain_model(setup: Setup) -> Any:
    make: Any = LlamaForCausalLM  # its methods carry no types
    model = make(LlamaConfig.from_pretrained(setup.folder)).eval()
    load_into(model, Snapshot(setup.snapshot))
    return model


def multinomial_loop(model: Any, job: Job) -> Work:
    """What a decode loop on a KV cache needs at the least: the prompt once, softmax, multinomial, log-probabilities."""

    @torch.inference_mode()
    def work() -> float:
        cache = DynamicCache(config=model.config)
        logits = model(torch.tensor([job.prompt]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits[
            :, -1
        ]
        cache.batch_repeat_interleave(len(job.seeds))
        logits = logits.expand(len(job.seeds), -1)
        tokens, logprobs = [], []
        for place in range(job.limit):
            logs = torch.log_softmax(logits, -1)
            token = torch.multinomial(logs.exp(), 1)
            tokens.append(token)
            logprobs.append(logs.gather(1, token))
            if place + 1 < job.limit:
                logits = model(token, past_key_values=cache, use_cache=True).logits[:, -1]
        return float(torch.cat(logprobs, 1).numel())

    return work


def library_generate(model: Any, job: Job) -> Work:
    """The library's own loop, asked for scores, from which the log-probabilities come."""
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def work() -> float:
        ids = torch.tensor([job.prompt])
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, num_return_sequences=len(job.seeds), top_k=0,
            top_p=1.0, temperature=1.0, max_new_tokens=job.limit, return_dict_in_generate=True, output_scores=True,
            pad_token_id=0,
        )  # fmt: skip
        tokens = found.sequences[:, len(job.prompt) :]
        logprobs = [
            torch.log_softmax(scores, -1).gather(1, tokens[:, place : place + 1])
            for place, scores in enumerate(found.scores)
        ]
        return float(torch.cat(logprobs, 1).numel())

    return work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="24 new tokens instead of 64, fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    bench.header("rollout: tokens per CPU second, SmolLM2-135M's shape, float32", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as folder:
        setup = prepare(Path(folder), 24 if quick else 64)
        model = plain_model(setup)
        anchors = {MULTINOMIAL: multinomial_loop(model, setup.job), GENERATE: library_generate(model, setup.job)}
        subjects = {name: make(setup) for name, make in SUBJECTS.items()}
        found = bench.take_turns({**subjects, **anchors, CHECKING: checking(setup)}, 3 if quick else 5)
    rows = [(name, sorted(run.rate for run in runs)[len(runs) // 2]) for name, runs in found.items()]
    ratios = {(name, anchor): bench.ratio(found[name], found[anchor]) for name in subjects for anchor in anchors}
    bench.table(["candidate", "tokens per CPU second"], rows)
    claims = [bench.Claim(name, value, anchor, BARS[anchor]) for (name, anchor), value in ratios.items()]
    cost = bench.ratio(found["engine"], found[CHECKING])
    return bench.close([*claims, bench.Claim(CHECKING, cost, "generation", 0.5, at_most=True)])


if __name__ == "__main__":
    sys.exit(main())
