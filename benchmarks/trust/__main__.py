"""Measure how soon other arithmetic than the policy's is named, and how seldom an honest node is refused:
`python -m benchmarks.trust [--quick] [--smollm2] [--tf32] [--engine llamacpp] [--device vulkan:0]`.

Honest engines generate in the 16-bit formats on machines that differ in threads, rows, prompts and instruction sets
(coordinator/verification/mixed_machines.py); the scorer computes in float32. Then, with the product's own fit, bets and
integers:

    left out   a Calibration is fitted from all machines but one, and that machine's groups are bets against it
    named      a node that computes something else (benchmarks/trust/policies.py), or does not follow its seeds
               (benchmarks/trust/frauds.py), is bet against under the Calibration of all machines; its groups are taken
               in random orders, and its tokens to refusal are counted
    doubted    a node that cheats where it costs nothing (benchmarks/trust/doubtful_days.py): its false groups that are
               trained on and paid
    bound      honest rollouts, forced tokens, and an attacker that knows the bound on a token
               (benchmarks/trust/forced_tokens.py)
    float32    the same nodes in float32, and honest ones on all machines, by the exact check of single tokens; the
               check of a canary against a pass of the scorer (benchmarks/trust/canary_check.py)

`--bound` measures the bound on a token alone, with `--smollm2` on random weights in SmolLM2-135M's shape, with
`--factors` at other factors too.

`--noise` measures instead whether honest machines that round more than those of the Calibration come into doubt, by
Calibrations of 4,000, 20,000 and 100,000 tokens per machine (benchmarks/trust/louder_machines.py).

`--versions` measures instead how soon a pass under the version before names a node that computes with it
(benchmarks/trust/version_passes.py).

`--receipt` measures instead T0 of a submission by bare Ed25519 verification (benchmarks/trust/receipt_checks.py), and
the check of a version's signed documents by python-tuf (benchmarks/trust/signed_documents.py). Both are part of a full
run.

`--temperature 0.8` measures a run at that temperature, with a node that samples at 1 among the bad ones.

`--tf32` lets the scorer and the Calibrations of the 16-bit formats compute in TF32, as a CPU emulates it
(engines/transformers/tf32.py; `--tf32 tf32-cut`: factors are cut, not rounded), and bets as well against machines whose
Calibration is by a scorer in the other precision.

`--shape` measures instead honest tokens of SmolLM2-135M's shape (benchmarks/trust/shape_tokens.py); with `--keep FILE`
a run goes on where the one before ended.

`--audits` measures instead the share of audits and canaries in a run's work (benchmarks/trust/audit_share.py). It is
part of a full run.

`--sampling` computes instead what is saved and lost where not every token of a known key is checked
(benchmarks/trust/sampled_checks.py); with `--dtype bfloat16` it measures such nodes too.

`--sybils` measures instead the gain of an owner of 1,000 keys, and its cost (benchmarks/trust/sybils.py).

The model has random weights, or is SmolLM2-135M. `--quick` takes fewer tokens. `--honest` leaves out the bad nodes.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust import frauds
from benchmarks.trust.audit_share import audit_share
from benchmarks.trust.canary_check import canary_check
from benchmarks.trust.doubtful_days import CHEATS, doubted
from benchmarks.trust.machines import PLAIN_LAYERS, Engines, Generated, compare, in_float32, scorer_env
from benchmarks.trust.receipt_checks import receipt_claims
from benchmarks.trust.sampled_checks import sampled_days, sampling_table
from benchmarks.trust.signed_documents import document_claims
from benchmarks.trust.streams import NEVER, left_out, named, pieces
from benchmarks.trust.sybils import sybil_table
from benchmarks.trust.version_passes import decided, pass_twice
from echo2.coordinator.verification.calibration import fit
from echo2.coordinator.verification.mixed_machines import mixed_machines
from echo2.coordinator.verification.token_evidence import TokenArray
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS, wrong_tokens
from echo2.engines.engine import Dtype
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import in_16_bits, is_exact
from echo2.engines.temperature import PLAIN_TEMPERATURE

if TYPE_CHECKING:
    from echo2.engines.transformers.tf32 import Tf32

SLOW: Final = ("PyTorch without AVX", "oneDNN with SSE 4.1")
"""Machines on which SmolLM2-135M is too slow."""
HONEST_ROLLOUTS: Final = 30_000
SHAPE_ROLLOUTS: Final = 1_000
"""Honest rollouts that are compared with the bound: of the demo's model, and of SmolLM2-135M's shape."""
FIRST: Final = 8_000
"""Number of a bad node's first prompt."""


class Experiment:
    """One model with its weights, engines and scorer."""

    def __init__(
        self, engines: Engines, weights: dict[str, Path], scorer: EngineProcess, *, slow: bool, honest: bool
    ) -> None:
        """`slow`: leave out the machines of `SLOW`. `honest`: leave out the bad nodes."""
        self._engines, self._weights, self._scorer, self._honest = engines, weights, scorer, honest
        machines = mixed_machines(engines.engine, engines.device.partition(":")[0])
        self._machines = {name: one for name, one in machines.items() if not (slow and name in SLOW)}

    async def inexact(self, dtype: Dtype) -> list[Claim]:
        """Measure a 16-bit format; return the claims."""
        machines, plain = await self._compared(dtype)
        claims = left_out(dtype, machines)
        if plain:
            parts = [np.concatenate([one for groups in of.values() for one in groups]) for of in (machines, plain)]
            off = np.abs(parts[0]["drift"].astype(np.int64) - parts[1]["drift"]).mean() / 2**16
            print(f"log-probabilities in TF32 are {off:.2g} nats off those in float32, in the mean\n")
            claims += left_out(f"{dtype}, calibrated in TF32, scored in float32", plain, machines)
            claims += left_out(f"{dtype}, calibrated in float32, scored in TF32", machines, plain)
        if self._honest:
            return claims
        tables = fit({name: np.concatenate(groups) for name, groups in machines.items()})
        submitted = {name: groups for name, groups in (await self._submitted(dtype)).items() if name != "honest"}
        bad = {name: pieces(await compare(self._scorer, groups)) for name, groups in submitted.items()}
        claims += doubted(dtype, tables, machines["64 rows"], bad)
        return claims + named(dtype, tables, bad, machines["64 rows"])

    async def sampled(self, dtype: Dtype) -> None:
        """Measure a 16-bit format where not every group is compared."""
        machines, _ = await self._compared(dtype)
        groups = {
            name: await self._engines.generate(frauds.MACHINE, dtype, self._weights[name], FIRST) for name in CHEATS
        }
        swaps = {name: pieces(await compare(self._scorer, parts)) for name, parts in groups.items()}
        tables = fit({name: np.concatenate(parts) for name, parts in machines.items()})
        sampled_days(dtype, tables, machines["64 rows"], swaps)

    async def _compared(self, dtype: Dtype) -> tuple[dict[str, list[TokenArray]], dict[str, list[TokenArray]]]:
        """Return the honest groups of each machine, cut in pieces; where the scorer emulates TF32, also as it compares
        them in float32."""
        machines, plain = dict[str, list[TokenArray]](), dict[str, list[TokenArray]]()
        for number, (name, machine) in enumerate(self._machines.items()):
            groups = await self._engines.generate(machine, dtype, self._weights["honest"], number * 1_000)
            machines[name] = pieces(await compare(self._scorer, groups))
            if self._engines.prompts.tf32:
                plain[name] = pieces(await compare(self._scorer, in_float32(groups)))
        return machines, plain

    async def versions(self, dtype: Dtype) -> list[Claim]:
        """Measure passes under two versions; return the claims."""
        nodes = {}
        for number, (name, weights) in enumerate({"honest": "honest", NEVER: NEVER}.items()):
            groups = await self._engines.generate(frauds.MACHINE, dtype, self._weights[weights], number * FIRST)
            nodes[name] = await pass_twice(self._scorer, self._engines.model, self._weights, groups, NEVER)
        return decided(dtype, nodes, NEVER)

    async def exact(self) -> list[Claim]:
        """Check the nodes of an exact class by single tokens; return the claims."""
        submitted = await self._submitted("float32")
        honest = submitted.pop("honest")
        machines = self._machines | {"plain layers": PLAIN_LAYERS}
        by_machine = {
            name: await self._engines.generate(machine, "float32", self._weights["honest"], number * 1_000)
            for number, (name, machine) in enumerate(machines.items())
        } | {"as the bad nodes": honest}
        rows, refused, groups, tokens = [], 0, 0, 0
        for name, parts in by_machine.items():
            wrong, number = await self._wrong(parts)
            rows.append([name, len(parts), number, sum(wrong), min(1.0, 3 / len(parts))])
            refused, groups, tokens = refused + sum(wrong), groups + len(parts), tokens + number
        bench.table(["float32, honest machine", "groups", "tokens", "refused", "bound by 3/n"], rows)
        print(f"honest in float32: {refused} of {groups} groups, {tokens} tokens; the bound is {3 / groups:.2g}\n")
        honest_claim = Claim("honest groups refused in float32", float(refused), "0", 0, at_most=True)
        canary = await canary_check(self._scorer, honest)
        return [await self._named_by_tokens(submitted), honest_claim, canary]

    async def _named_by_tokens(self, submitted: dict[str, list[Generated]]) -> Claim:
        rows, worst = [], 1.0
        for name, groups in submitted.items():
            wrong, number = await self._wrong(groups)
            first = wrong.index(True) + 1 if any(wrong) else "never"
            rows.append([name, len(groups), number, sum(wrong) / len(wrong), first])
            worst = min(worst, float(any(wrong[:10])))
        bench.table(["float32 node", "groups", "tokens", "refused", "named at group"], rows)
        return Claim("nodes named in float32", worst, "all, within 10 groups", 1.0)

    async def _wrong(self, groups: Sequence[Generated]) -> tuple[list[bool], int]:
        """Return whether each group has a token that is wrong by more than the margin, and the number of tokens."""
        wrong, tokens = [], 0
        for job, samples in groups:
            beyond, compared = wrong_tokens(await self._scorer.score(job, pack_samples(samples)), EXACT_THRESHOLDS)
            wrong.append(beyond > 0)
            tokens += compared
        return wrong, tokens

    async def _submitted(self, dtype: Dtype) -> dict[str, list[Generated]]:
        """Return the groups of a node per policy and fraud, and of an honest node ("honest")."""
        engines, honest = self._engines, self._weights["honest"]
        groups = {
            name: await engines.generate(frauds.MACHINE, dtype, path, FIRST) for name, path in self._weights.items()
        }
        if engines.prompts.temperature != PLAIN_TEMPERATURE:
            groups["T = 1"] = await frauds.at_temperature_one(engines, dtype, honest, FIRST)
        return groups | {
            "other seeds": frauds.other_seeds(engines, groups["honest"]),
            "copied": frauds.copied(engines, groups["honest"]),
            "replayed": frauds.replayed(engines, groups["honest"]),
            f"best of {frauds.CHOICES}": await frauds.best_of(engines, dtype, honest, FIRST),
            f"{frauds.PREFIX} tokens prefilled": await frauds.prefilled(engines, dtype, honest, FIRST, self._scorer),
        }


async def measure(folder: Path, order: argparse.Namespace) -> list[Claim]:
    """Generate, compare and bet; return the claims."""
    from benchmarks.trust import forced_tokens, policies

    tokens = order.tokens or (40_960 if order.versions else 2_400 if order.quick else 16_384)
    model, prompts = (policies.import_smollm2 if order.smollm2 else policies.make_model)(folder / "model")
    prompts = prompts._replace(temperature=round(order.temperature * PLAIN_TEMPERATURE))
    weights = policies.write_weights(model, folder)
    del model
    async with EngineProcess(name="scorer", env=scorer_env(order.tf32)) as scorer:
        await scorer.probe("cpu", "float32", engine="transformers")
        await scorer.load(folder / "model", weights["honest"])
        claims = []
        for dtype in order.dtype or ["bfloat16", "float16", "float32"]:
            exact = is_exact(f"{order.engine}/{dtype}/{order.device.partition(':')[0]}")
            alone = order.versions or order.sampling or order.smollm2 or order.honest
            if not (exact or alone or order.temperature != 1):
                claims += forced_tokens.bound_claims(folder / "demo", dtype, HONEST_ROLLOUTS, emulation_of(order))
            prompts = prompts._replace(tf32=bool(order.tf32) and in_16_bits(dtype))
            engines = Engines(folder / "model", prompts, tokens // (2 if exact else 1), order.engine, order.device)
            experiment = Experiment(engines, weights, scorer, slow=order.smollm2, honest=order.honest)
            if order.sampling:
                await experiment.sampled(dtype)
            elif order.versions:
                claims += [] if exact else await experiment.versions(dtype)
            else:
                claims += await (experiment.exact() if exact else experiment.inexact(dtype))
        return claims


def emulation_of(order: argparse.Namespace) -> "Tf32 | None":
    """Return what emulates TF32, where the order asks for it."""
    import torch

    from echo2.engines.transformers.tf32 import tf32_of

    return tf32_of(torch.device("cpu"), scorer_env(order.tf32))


def measure_bound(folder: Path, order: argparse.Namespace) -> list[Claim]:
    """Measure the bound on a token alone; return the claims."""
    from benchmarks.trust import forced_tokens

    claims: list[Claim] = []
    for dtype in order.dtype or ["bfloat16", "float16"]:
        if order.smollm2:
            claims += forced_tokens.shape_claims(dtype, SHAPE_ROLLOUTS, emulation_of(order))
        else:
            claims += forced_tokens.bound_claims(
                folder / "demo", dtype, HONEST_ROLLOUTS, emulation_of(order), factors=order.factors
            )
    return claims


def measure_noise(folder: Path, order: argparse.Namespace) -> list[Claim]:
    """Measure louder machines; return the claims."""
    from benchmarks.trust.louder_machines import noise_claims

    formats = order.dtype or ["bfloat16", "float16"]
    return [claim for dtype in formats for claim in noise_claims(folder / "demo", dtype, order)]


def measure_sampling(order: argparse.Namespace) -> int:
    """Print what is saved and lost where not every token is checked; return the exit status. There is no bar."""
    bench.header("a part of the tokens is checked", ["numpy"])
    sampling_table()
    order.dtype = [dtype for dtype in order.dtype or [] if in_16_bits(dtype)]
    if order.dtype:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(measure(Path(name), order))
    return 0


async def measure_shape(folder: Path, order: argparse.Namespace) -> list[Claim]:
    """Measure honest tokens of SmolLM2-135M's shape; return the claims."""
    from benchmarks.trust import shape_tokens

    if order.engine not in shape_tokens.OTHER_MACHINE:
        sys.exit(f"--shape: engine {order.engine}: use {' or '.join(shape_tokens.OTHER_MACHINE)}")
    return await shape_tokens.measure(folder, order, round(order.temperature * PLAIN_TEMPERATURE))


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2-135M in place of random weights")
    parser.add_argument("--tokens", type=int, help="least tokens per machine and node, in float32 half of them")
    parser.add_argument(
        "--dtype", action="append", choices=("float32", "bfloat16", "float16"), help="as often as needed; default: all"
    )
    parser.add_argument("--engine", default="transformers", help="of the nodes")
    parser.add_argument("--device", default="cpu", help="of the nodes")
    parser.add_argument("--honest", action="store_true", help="honest machines alone, in classes that are not exact")
    parser.add_argument("--versions", action="store_true", help="passes under two versions alone, with 40,960 tokens")
    parser.add_argument("--bound", action="store_true", help="the bound on a token alone, in 16-bit formats")
    parser.add_argument("--factors", action="store_true", help="with --bound: other factors of it too")
    parser.add_argument("--noise", action="store_true", help="louder honest machines alone, in 16-bit formats")
    parser.add_argument("--receipt", action="store_true", help="T0 and signed documents alone")
    parser.add_argument("--audits", action="store_true", help="share of audits and canaries in a run's work alone")
    parser.add_argument("--sybils", action="store_true", help="an owner of 1,000 keys alone; --quick: 3 hours")
    parser.add_argument("--sampling", action="store_true", help="a part of the tokens checked; --dtype: nodes too")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the run; default: 1")
    parser.add_argument("--shape", action="store_true", help="honest tokens of SmolLM2-135M's shape alone")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="of --shape: what is judged so far, to go on from")
    parser.add_argument(
        "--tf32", nargs="?", choices=("tf32", "tf32-cut"), const="tf32", help="a scorer in TF32, for 16-bit formats"
    )
    order = parser.parse_args()
    bench.one_thread()
    if order.receipt:
        bench.header("T0 and signed documents", ["cryptography"])
        return bench.close(receipt_claims(order.quick) + document_claims(order.quick))
    if order.audits:
        bench.header("audits")
        return bench.close(audit_share(24.0))
    if order.sybils:
        bench.header("sybils")
        return bench.close(sybil_table(3.0 if order.quick else 24.0))
    if order.sampling:
        return measure_sampling(order)
    bench.header("evidence against nodes", ["torch", "transformers", "numpy"])
    with tempfile.TemporaryDirectory() as name:
        if order.shape:
            claims = asyncio.run(measure_shape(Path(name), order))
        elif order.bound or order.noise:
            claims = (measure_bound if order.bound else measure_noise)(Path(name), order)
        else:
            claims = asyncio.run(measure(Path(name), order))
    if not (order.versions or order.bound or order.noise or order.shape or order.temperature != 1):
        claims += (
            receipt_claims(order.quick) + document_claims(order.quick) + audit_share(12.0 if order.quick else 24.0)
        )
    return bench.close(claims)


if __name__ == "__main__":
    sys.exit(main())
