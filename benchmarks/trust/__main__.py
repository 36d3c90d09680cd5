"""Measure how soon other arithmetic than the policy's is named, and how seldom an honest node is refused:
`python -m benchmarks.trust [--quick]`.

Honest engines generate in bfloat16 on machines that differ in threads, rows and instruction sets
(benchmarks/trust/machines.py); the scorer computes in float32. Then, with the product's own fit, bets and integers:

    left out   a Calibration is fitted from all machines but one, and that machine's groups are bets against it
    named      a node that computes something else is bet against under the Calibration of all machines; its groups are
               taken in random orders, and its tokens to refusal are counted
    float32    the same nodes in float32, by the exact check of single tokens, in groups

The model has random weights. `--quick` takes fewer tokens.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.machines import MACHINES, Generated, Machine, compare, generate, make_job
from coordinator.rollouts.verification import EXACT, wrong_tokens
from coordinator.verification.calibration import fit
from coordinator.verification.evidence import DOUBT, EProcess, NodeEvidence, Tables, products
from coordinator.verification.token_evidence import DIFFERS, TokenArray
from engines.messages import packed
from engines.process import EngineProcess

ORDERS: Final = 20
"""Number of random orders in which a node's groups are taken."""
MOST_TOKENS: Final = 20_000
"""A node that is not refused within these counts as not named."""
NEVER: Final = "one stale step"
"""The swap for which no bar is set: docs/protocol/evidence.md says why it is nearly harmless."""
INT8_TOKENS: Final = 2_000
OTHER_SEEDS: Final = "other seeds"
Groups = list[TokenArray]


def pieces(groups: Iterable[TokenArray], tokens: int = 64) -> Groups:
    """Cut groups into pieces of `tokens` tokens, the size of a small group."""
    joined = np.concatenate(list(groups))
    return [joined[start : start + tokens] for start in range(0, len(joined) - tokens + 1, tokens)]


def tokens_to_refusal(groups: Groups, tables: Tables, order: np.random.Generator) -> int:
    """Return the tokens after which a node is refused, its groups taken again and again in random orders;
    `MOST_TOKENS` if never."""
    bets = [products(group, tables) for group in groups]
    evidence, tokens = NodeEvidence(), 0
    while tokens < MOST_TOKENS:
        number = int(order.integers(len(groups)))
        evidence = evidence.after(bets[number], 0)
        tokens += len(groups[number])
        if evidence.conclusion() == "refusal":
            return tokens
    return MOST_TOKENS


def describe(groups: Groups) -> list[object]:
    """Return (tokens, share that differs, mean margin, mean absolute drift)."""
    tokens = np.concatenate(groups)
    differs = float(((tokens["flags"] & DIFFERS) > 0).mean())
    drift = float(np.abs(tokens["drift"].astype(np.int64)).mean()) / 2**16
    return [len(tokens), differs, float(tokens["margin"].mean()) / 2**17, drift]


def left_out(machines: Mapping[str, Groups]) -> tuple[list[Claim], int]:
    """Bet against each machine under a Calibration of the others; return the claim, and the number of orders tried."""
    rows, days, refused, doubted = [], 0, 0, 0
    for name, groups in machines.items():
        tables = fit({other: np.concatenate(tokens) for other, tokens in machines.items() if other != name})
        order, highest, bets = np.random.default_rng(0), 0.0, [products(group, tables) for group in groups]
        for _ in range(ORDERS):
            process, peak = EProcess(), 0.0
            for number in order.permutation(len(groups)):
                process = process.after(bets[number])
                value = process.value()
                peak = max(peak, value.mantissa * 2.0**value.exponent)
            days, refused, doubted = days + 1, refused + (peak >= 1e6), doubted + (peak >= DOUBT)
            highest = max(highest, peak)
        rows.append([name, *describe(groups), highest])
    bench.table(["machine left out", "tokens", "differ", "margin", "drift", "highest E"], rows)
    print(f"left out: {refused} refused, {doubted} doubted, of {days} orders of {len(machines)} machines")
    print(
        f"0 of {len(machines)} machines bounds the share of machines that are refused by {3 / len(machines):.2g} only\n"
    )
    return [Claim("honest orders refused", float(refused), "0", 0, at_most=True)], days


def named(tables: Tables, swaps: Mapping[str, Groups]) -> list[Claim]:
    """Bet against each swap; return the claims."""
    rows, shares = [], []
    for name, groups in swaps.items():
        order = np.random.default_rng(1)
        counts = [tokens_to_refusal(groups, tables, order) for _ in range(ORDERS)]
        share = sum(count < MOST_TOKENS for count in counts) / ORDERS
        rows.append([name, *describe(groups), share, int(np.median(counts)), int(np.quantile(counts, 0.95))])
        if name != NEVER:
            shares.append(share)
        if name == "int8":
            within = sum(count <= INT8_TOKENS for count in counts) / ORDERS
    bench.table(["bfloat16 node", "tokens", "differ", "margin", "drift", "named", "median", "p95"], rows)
    return [
        Claim("nodes named in bfloat16", min(shares), f"all, within {MOST_TOKENS:,} tokens", 0.99),
        Claim("int8 named in bfloat16", within, f"all, within {INT8_TOKENS:,} tokens", 0.99),
    ]


async def exactly(scorer: EngineProcess, swaps: Mapping[str, list[Generated]]) -> list[Claim]:
    """Check float32 nodes by single tokens; return the claim."""
    rows, worst = [], 1.0
    for name, groups in swaps.items():
        wrong = [wrong_tokens(await scorer.score(job, packed(samples)), EXACT)[0] > 0 for job, samples in groups]
        first = wrong.index(True) + 1 if any(wrong) else len(wrong) + 1
        rows.append([name, len(groups), sum(wrong) / len(wrong), first if any(wrong) else "never"])
        if name != "honest":
            worst = min(worst, float(any(wrong[:10])))
        else:
            honest = sum(wrong)
    bench.table(["float32 node", "groups", "refused", "named at group"], rows)
    return [
        Claim("nodes named in float32", worst, "all, within 10 groups", 1.0),
        Claim("honest groups refused in float32", float(honest), "0", 0, at_most=True),
    ]


async def measure(folder: Path, tokens: int) -> list[Claim]:
    """Generate, compare and bet; return the claims."""
    from benchmarks.trust import policies

    model = folder / "model"
    weights = policies.write_weights(policies.make_model(model), folder)
    scorer = EngineProcess(name="scorer")
    await scorer.start()
    try:
        await scorer.probe("cpu", "float32")
        await scorer.load(model, weights["honest"])
        machines = {
            name: pieces(
                await compare(scorer, await generate(machine, "bfloat16", model, weights["honest"], tokens, n * 1_000))
            )
            for n, (name, machine) in enumerate(MACHINES.items())
        }
        claims, _ = left_out(machines)
        fast = Machine(rows=64)
        other = {name: await generate(fast, "bfloat16", model, weights[name], tokens, 8_000) for name in policies.SWAPS}
        tables = fit({name: np.concatenate(groups) for name, groups in machines.items()})
        claims += named(tables, {name: pieces(await compare(scorer, groups)) for name, groups in other.items()})
        one = {
            name: await generate(Machine(), "float32", model, path, tokens // 2, 8_500)
            for name, path in weights.items()
        }
        one[OTHER_SEEDS] = with_other_seeds(one["honest"])
        return claims + await exactly(scorer, one)
    finally:
        await scorer.stop()


def with_other_seeds(groups: Sequence[Generated]) -> list[Generated]:
    """Return the groups of a node that drew seeds of its own, as if to choose the best of many."""
    return [Generated(make_job(group.job.index, len(group.samples), "x"), group.samples) for group in groups]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer tokens")
    order = parser.parse_args()
    bench.one_thread()
    bench.header("evidence against nodes", ["torch", "transformers", "numpy"])
    with tempfile.TemporaryDirectory() as name:
        return bench.close(asyncio.run(measure(Path(name), 2_400 if order.quick else 16_384)))


if __name__ == "__main__":
    sys.exit(main())
