"""Measure the scorer's change of version and its checks of groups: `python -m benchmarks.scorer [--quick]`.

The engine keeps S + 1 versions (`--staleness S`). Three changes of version alternate:

    loaded anew         the snapshot file of a version is loaded, as with a whole copy of each version on disk
    step by a payload   from the newest version to the next
    step among them     from one kept version to another, back and forth

Bars: a step among the kept versions costs at most half of loading anew, and the S + 1 versions take at most half of the
bytes of whole copies. The rate of scoring is measured by benchmarks/scorer_rate.py, the cost of checking a group by
benchmarks/scorer_looks.py.

Seconds are CPU time of the thread, and by the clock, which includes the disk. The model is SmolLM2-135M-Instruct; with
--quick a smaller one with random weights. A new version changes each weight by one unit in its last place with
probability u / ulp(w), where u is chosen so that a share `RHO` of them changes.
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import scorer_looks, scorer_rate
from benchmarks.harness import bench
from echo2.tasks.tokenizer import EOS, char_tokenizer
from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot, writing_snapshot

RHO: Final = 0.008
"""Share of the weights that a version changes."""
TURNS: Final = 5


def next_version(old: Snapshot, path: Path, rng: np.random.Generator) -> Snapshot:
    """Write a next version, changed as the module describes. Only bfloat16 weights change."""
    with writing_snapshot(path, old.tensors, old.aliases) as writer:
        for entry in old.tensors:
            bits = old.bits(entry.name)
            if entry.dtype == "BF16":
                exponent = (bits >> 7 & 0xFF).astype(np.int16)
                chance = np.minimum(2.0 ** (np.median(exponent) - exponent), 64)
                bits = bits + (rng.random(len(bits)) < RHO * chance / chance.mean()).astype(np.uint16)
            writer.write(bits)
        writer.finish()
    return Snapshot(path)


def measure(model: Path, base: Path, folder: Path, staleness: int) -> int:
    """Measure, print the tables and the closing lines, and return the exit status. `base`: the model's weights.
    `folder`: for versions and payloads."""
    from echo2.engines.transformers.engine import TransformersEngine

    rng = np.random.default_rng(0)
    versions, payloads = [Snapshot(base)], list[Path]()
    for number in range(1, staleness + TURNS + 2):
        versions.append(next_version(versions[-1], folder / f"{number}.safetensors", rng))
        payloads.append(encode(versions[-2], versions[-1], folder / f"{number}.payload").path)
        if number > 2:
            versions[-2].path.unlink()
    rolling = folder / "rolling"
    Rolling.create(rolling, versions[0])
    stepping, loading = TransformersEngine(), TransformersEngine()
    stepping.load(model, rolling)

    def forward() -> float:
        current = [version.root for version in versions].index(stepping.step_to(_tip(stepping)).root)
        stepping.step_by(payloads[current], versions[current + 1].root, staleness)
        return 1.0

    def among() -> float:
        loaded = stepping._live_model().describe_loaded()
        stepping.step_to((loaded.ahead or loaded.behind)[0])
        return 1.0

    def anew() -> float:
        loading.load(model, versions[1].path)
        return 1.0

    for _ in range(staleness):
        forward()
    ways: dict[str, Callable[[], float]] = {"loaded anew": anew, "step by a payload": forward, "step among them": among}
    measured_by_name = bench.take_turns({name: bench.timed(work) for name, work in ways.items()}, TURNS)
    bench.table(
        ("way", "CPU s", "s by the clock, least", "median"),
        [(name, *_seconds(measured)) for name, measured in measured_by_name.items()],
    )
    copies = (staleness + 1) * versions[0].nbytes
    nbytes = sum(path.stat().st_size for path in rolling.rglob("*") if path.is_file())
    print(f"{staleness + 1} versions: {copies:,} bytes whole, {nbytes:,} in one folder\n")
    eos: int = json.loads((model / "config.json").read_text())["eos_token_id"]
    quicker = bench.ratio(measured_by_name["step among them"], measured_by_name["loaded anew"])
    versions_claims = [
        bench.Claim("step among them", quicker, "loaded anew", 2),
        bench.Claim("bytes on disk", nbytes / copies, "whole copies", 0.5, at_most=True),
    ]
    rates = (part(stepping, eos) for part in (scorer_rate.claims, scorer_looks.claims))
    return bench.close_each(itertools.chain([versions_claims], rates))


def _tip(engine: Any) -> bytes:
    loaded = engine._live_model().describe_loaded()
    tip: bytes = loaded.ahead[-1] if loaded.ahead else loaded.root
    return tip


def _seconds(measured: list[bench.Measured]) -> tuple[float, float, float]:
    walls = sorted(one.wall for one in measured)
    return min(one.cpu for one in measured), walls[0], walls[len(walls) // 2]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scorer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="random weights, of a smaller model")
    parser.add_argument("--staleness", type=int, default=4)
    order = parser.parse_args()
    bench.one_thread()
    bench.header("the scorer's versions", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        if order.quick:
            _small(model)
        else:
            from echo2.coordinator.run import model_folder

            model_folder.make_smollm2(model)
        return measure(model, model / "model.safetensors", folder, order.staleness)


def _small(folder: Path) -> None:
    """Make a model folder with 8 M random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from echo2.weights.torch_io import save_model

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=16_384, tie_word_embeddings=True, eos_token_id=EOS,
    )  # fmt: skip
    folder.mkdir()
    char_tokenizer().save(str(folder / "tokenizer.json"))
    config.save_pretrained(folder)
    save_model(LlamaForCausalLM(config), folder / "model.safetensors")


if __name__ == "__main__":
    sys.exit(main())
