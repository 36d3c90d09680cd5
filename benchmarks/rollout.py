"""Measure the tokens that a volunteer's node makes per CPU second: `python -m benchmarks.rollout [--quick | --rows]`.

Claims, for a group of 8 with seeded sampling and exact log-probabilities:

    node      accepted tokens per CPU second of a whole node (its main and engine process, from the first lease to the
              last verdict, start-up excluded) are at least 0.90 of the same decode loop called bare with plain
              `torch.multinomial`, and at least 1.1 times those of `transformers.generate` with log-probabilities
    engine    the same for the engine alone: at least 0.95 and 1.1
    checking  teacher-forced log-probabilities and the seeded choice of every token cost at most half of generating

Many groups together (benchmarks.rollout_rows; left out by --quick, alone by --rows, with random weights and 24 tokens):

    full node     a node with leases enough makes at least 0.9 of the engine's best rate at any number of rows, and at
                  least 3 times what it makes with one group at a time
    mixed         groups of mixed lengths: at least 1.3 times `transformers.generate` at its own best batch
    version       a change of version after 10 group times costs at most 5 % of their tokens

The model is SmolLM2-135M-Instruct in float32, with 64 new tokens per rollout; with --quick random weights of its shape,
and 24. A token that the model does not write stands for the end of a turn, so that all rollouts have full length. All
candidates alternate in one run, on one thread each.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import bench, volunteer

bench.one_thread()

import torch  # noqa: E402
from tokenizers import Regex, Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: E402

from benchmarks import rollout_rows  # noqa: E402
from benchmarks.harness.bench import Candidate  # noqa: E402
from benchmarks.plays.direct import generate  # noqa: E402
from benchmarks.version_change import change_cost, rows_left  # noqa: E402
from echo2.coordinator.run import model_folder  # noqa: E402
from echo2.engines.batch.row_limit import RowLimit  # noqa: E402
from echo2.engines.engine import Job  # noqa: E402
from echo2.engines.transformers.engine import TransformersEngine  # noqa: E402
from echo2.tasks import tokenizer as text  # noqa: E402
from echo2.weights.snapshot import Snapshot  # noqa: E402
from echo2.weights.torch_io import load_into, save_model  # noqa: E402

GROUP = 8
FULL_GROUPS = 32
"""Groups per round of a node with leases enough: 256 rollouts."""
TASK = "single_sum"
MULTINOMIAL, GENERATE = "decode loop with torch.multinomial", "transformers.generate with log-probs"
CHECKING = "checking, T1 + T2"
BARS = {
    ("node", MULTINOMIAL): 0.90,
    ("node", GENERATE): 1.10,
    ("engine", MULTINOMIAL): 0.95,
    ("engine", GENERATE): 1.10,
}
HOPED = 1.3
"""Hoped-for ratio of the node against GENERATE; printed, not required."""


class Setup(NamedTuple):
    """A model folder, and the group that every candidate in this process generates, as a lease would ask for it.
    `snapshot`: the weights in bf16. `groups`: number that the whole node makes per round."""

    folder: Path
    snapshot: Path
    job: Job
    groups: int


ROWS = (8, 16, 32, 64, 128, 256)
FULL_ROUNDS = 3
BEST, ONE, LIBRARY = (
    "the engine's best number of rows",
    "one group at a time",
    "transformers.generate at its best batch",
)

Work = Callable[[], float]
"""Generates the group once, or scores it once, and returns its number of sampled tokens."""


def prepare(folder: Path, *, real: bool, new_tokens: int, groups: int, small: bool = False) -> Setup:
    """Make the model and the group's job. `real`: SmolLM2; else random weights of its shape; `small`: 8 M weights."""
    if real:
        model_folder.make_smollm2(folder)
        _silence(folder)
    else:
        _random_model(folder, small=small)
    make: Any = LlamaForCausalLM  # its methods carry no types
    snapshot = save_model(make.from_pretrained(folder, dtype=torch.float32), folder / "v0.safetensors")
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    task = model_folder.task_named(TASK)
    job = Job(
        prompt=list(task.episode("train", 0, text.load(folder / "tokenizer.json", eos)).prompt),
        seeds=[b"rollout benchmark"[:15] + bytes([sample]) for sample in range(GROUP)],
        limit=new_tokens, eos=eos, task=task.name, task_version=task.version, split="train", index=0,
    )  # fmt: skip
    return Setup(folder, snapshot.path, job, groups)


def _silence(folder: Path) -> None:
    """Declare a special token that the model was never taught to write as the end of a turn."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["eos_token_id"] = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<jupyter_script>")
    path.write_text(json.dumps(config))


def _random_model(folder: Path, *, small: bool = False) -> None:
    """Make a model of SmolLM2-135M's shape with random weights, whose values do not affect speed. `small`: of a
    smaller one. Its tokenizer has one token per word or character."""
    vocabulary, width, layers, heads = (16_384, 192, 6, 3) if small else (49_152, 576, 30, 9)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=3, max_position_embeddings=8192, tie_word_embeddings=True,
        rms_norm_eps=1e-5, rope_parameters={"rope_theta": 1e5, "rope_type": "default"}, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.nn.Module.to(LlamaForCausalLM(config), torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<other>": 1, "<eos>": 2}, unk_token="<other>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\W"), "isolated")
    tokenizer.add_special_tokens(["<pad>", "<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def engine_of(setup: Setup, limit: RowLimit | None = None) -> TransformersEngine:
    """Return an engine in this process with the version loaded."""
    loaded_engine = TransformersEngine(limit=limit)
    loaded_engine.load(setup.folder, setup.snapshot)
    return loaded_engine


@contextmanager
def engine(setup: Setup) -> Iterator[Candidate]:
    """Yield the engine alone, in this process."""
    loaded_engine = engine_of(setup)
    yield bench.timed(lambda: float(sum(len(sample.logprobs) for sample in generate(loaded_engine, setup.job))))


@contextmanager
def node(setup: Setup) -> Iterator[Candidate]:
    """Yield a whole node, of which only accepted tokens count."""
    with (
        tempfile.TemporaryDirectory() as folder,
        volunteer.joined(
            setup.folder, setup.snapshot, Path(folder), task=TASK, limit=setup.job.limit, group=GROUP,
            groups=setup.groups, per_node=1,
        ) as candidate,
    ):  # fmt: skip
        yield candidate


@contextmanager
def full_node(setup: Setup) -> Iterator[Candidate]:
    """Yield a whole node with leases enough: `FULL_GROUPS` per round, and as many at a time as it requests."""
    with (
        tempfile.TemporaryDirectory() as folder,
        volunteer.joined(
            setup.folder, setup.snapshot, Path(folder), task=TASK, limit=setup.job.limit, group=GROUP,
            groups=FULL_GROUPS, per_node=FULL_GROUPS,
        ) as candidate,
    ):  # fmt: skip
        yield candidate


def checking(setup: Setup) -> Work:
    """Return the scoring of a group that the same engine generated."""
    loaded_engine = engine_of(setup)
    samples = generate(loaded_engine, setup.job)
    return lambda: float(sum(len(score.logprobs) for score in loaded_engine.score(setup.job, samples)))


SUBJECTS: dict[str, Callable[[Setup], AbstractContextManager[Candidate]]] = {"node": node, "engine": engine}


def plain_model(setup: Setup) -> Any:
    make: Any = LlamaForCausalLM  # its methods carry no types
    model = make(LlamaConfig.from_pretrained(setup.folder)).eval()
    load_into(model, Snapshot(setup.snapshot))
    return model


def multinomial_loop(model: Any, job: Job) -> Work:
    """Return a decode loop on a KV cache that does the least possible: the prompt once; per token softmax, multinomial
    and log-probability."""

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
    """Return `transformers.generate` with scores, from which the log-probabilities are computed."""
    model.generation_config.eos_token_id = None

    @torch.inference_mode()
    def work() -> float:
        ids = torch.tensor([job.prompt])
        generated = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, num_return_sequences=len(job.seeds), top_k=0,
            top_p=1.0, temperature=1.0, max_new_tokens=job.limit, return_dict_in_generate=True, output_scores=True,
            pad_token_id=0,
        )  # fmt: skip
        tokens = generated.sequences[:, len(job.prompt) :]
        logprobs = [
            torch.log_softmax(scores, -1).gather(1, tokens[:, place : place + 1])
            for place, scores in enumerate(generated.scores)
        ]
        return float(torch.cat(logprobs, 1).numel())

    return work


class Together(NamedTuple):
    """The rates of many groups generated together. `rows`: tokens per CPU second by number of rows. `full`, `one`: of a
    whole node with leases enough, and with one group at a time. `library`: by batch."""

    rows: Mapping[int, float]
    full: float
    one: float
    mixed: rollout_rows.MixedRun
    library: Mapping[int, float]


def together(setup: Setup) -> Together:
    """Measure many groups generated together."""
    rows: dict[int, float] = {}
    for number in ROWS:
        alone = engine_of(setup, rollout_rows.FixedRows(number))
        work = bench.timed(partial(rollout_rows.full_length, alone, setup.job, number))
        work()
        rows[number] = work().rate
        del alone, work
        gc.collect()  # an engine and its batch refer to each other
    nodes = {}
    for name, make in (("full", full_node), ("one", node)):
        with make(setup) as candidate:
            nodes[name] = statistics.median([candidate().rate for _ in range(FULL_ROUNDS)][1:])
    best, job = max(rows, key=lambda number: rows[number]), rollout_rows.mixed_job(setup.job)
    jobs = rollout_rows.groups_of(job, 5 * best // GROUP, rollout_rows.mixed_lengths(5 * best // GROUP))
    mixed = rollout_rows.mixed_run(engine_of(setup, rollout_rows.FixedRows(best)), jobs, best)
    model, library = plain_model(setup), {}
    model.generation_config.eos_token_id = None
    for batch in rollout_rows.BATCHES:
        lengths = rollout_rows.mixed_lengths(batch)
        library[batch] = bench.timed(partial(rollout_rows.library_mixed, model, job.prompt, lengths))().rate
    return Together(rows, nodes["full"], nodes["one"], mixed, library)


def report_together(measured: Together) -> int:
    """Print the tables and the closing lines of many groups; return the exit status."""
    bench.table(["rows of the engine", "tokens per CPU second"], [*measured.rows.items()])
    bench.table(["generate's batch, mixed lengths", "tokens per CPU second"], [*measured.library.items()])
    mixed = measured.mixed
    print(f"mixed lengths: {mixed.rate:.0f} tokens per CPU second, {mixed.steady:.0f} while groups wait")
    print(f"a change of version costs {mixed.lost_tokens:.0f} tokens", _shares(mixed.lost), sep=", ")
    best = max(measured.rows, key=lambda rows: measured.rows[rows])
    lengths = range(rollout_rows.SHORTEST, rollout_rows.LONGEST + 1)
    cost = change_cost(rows_left(lengths, best), measured.rows, best)
    print(f"computed from the rates: {cost.one_copy:.0f}, with two copies of the weights {cost.two_copies:.0f}\n")
    return bench.close(
        [
            bench.Claim("full node", measured.full / max(measured.rows.values()), BEST, 0.9),
            bench.Claim("full node", measured.full / measured.one, ONE, 3.0),
            bench.Claim("mixed", mixed.rate / max(measured.library.values()), LIBRARY, 1.3),
            bench.Claim("version", mixed.lost, "the tokens of 10 group times", 0.05, at_most=True),
        ]
    )


def _shares(lost: float) -> str:
    """Return the share of all tokens that changes of version cost, by the time between two. `lost`: at
    `rollout_rows.PER_CHANGE` group times."""
    shares = [f"{lost * rollout_rows.PER_CHANGE / groups:.1%} at {groups}" for groups in (10, 5, 2, 1)]
    return f"of all tokens {', '.join(shares)} group times from one to the next"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="random weights, 24 new tokens, fewer repeats")
    parser.add_argument("--rows", action="store_true", help="only many groups together")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    status = 0 if arguments.rows else _one_group(arguments.quick)
    return status if arguments.quick else max(status, _many_groups())


def _many_groups() -> int:
    name = "random weights of SmolLM2-135M's shape"
    bench.header(f"rollout, many groups: tokens per CPU second, {name}, float32", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as folder:
        return report_together(together(prepare(Path(folder), real=False, new_tokens=24, groups=2)))


def _one_group(quick: bool) -> int:
    name = "random weights of SmolLM2-135M's shape" if quick else "SmolLM2-135M-Instruct"
    bench.header(f"rollout: tokens per CPU second, {name}, float32", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        setup = prepare(Path(folder), real=not quick, new_tokens=24 if quick else 64, groups=2)
        print(f"groups of {GROUP} x {setup.job.limit} tokens, a prompt of {len(setup.job.prompt)}\n", flush=True)
        model = plain_model(setup)
        anchors = {MULTINOMIAL: multinomial_loop(model, setup.job), GENERATE: library_generate(model, setup.job)}
        subjects = {name: stack.enter_context(make(setup)) for name, make in SUBJECTS.items()}
        bare = {name: bench.timed(work) for name, work in {**anchors, CHECKING: checking(setup)}.items()}
        measured = bench.take_turns({**subjects, **bare}, 3 if quick else 5)
    return report(measured)


def report(measured: Mapping[str, Sequence[bench.Measured]]) -> int:
    """Print the table and the closing lines; return the exit status."""
    rows = [
        (
            name,
            statistics.median(run.rate for run in runs),
            min(run.rate for run in runs),
            max(run.rate for run in runs),
            statistics.median(run.work / run.wall for run in runs),
        )
        for name, runs in measured.items()
    ]
    bench.table(["candidate", "tokens per CPU second", "least", "most", "tokens per second"], rows)
    claims = [
        bench.Claim(name, bench.ratio(measured[name], measured[anchor]), anchor, bar)
        for (name, anchor), bar in BARS.items()
    ]
    cost = bench.Claim(CHECKING, bench.ratio(measured["engine"], measured[CHECKING]), "generation", 0.5, at_most=True)
    hoped = bench.ratio(measured["node"], measured[GENERATE])
    print(f"node against {GENERATE}: {hoped:.3f}, hoped for {HOPED}: {'reached' if hoped >= HOPED else 'not reached'}")
    return bench.close([*claims, cost])


if __name__ == "__main__":
    sys.exit(main())
