"""Honest machines that round more than those of the Calibration, by Calibrations of few and of many tokens.

The model and the task are the demo's (benchmarks/trust/forced_tokens.py). A Calibration has `MACHINES` machines whose
noise is that of the format. Against it as many others compute, a third of them with each of `NOISES` times that noise,
and their groups are taken in random orders. More tokens make a bound narrower, never its allowance for noise. Groups
beyond the bound on a token are counted beside: that bound does not depend on the number of tokens.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np
import torch

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.forced_tokens import MACHINES, NOISES, SIZE, honest_groups, make_pair
from benchmarks.trust.machines import scorer_env
from benchmarks.trust.streams import ORDERS, beyond_bound, peaks
from echo2.coordinator.verification.calibration import fit
from echo2.coordinator.verification.evidence import DOUBT_EVIDENCE
from echo2.coordinator.verification.token_evidence import ONE
from echo2.engines.engine import Dtype
from echo2.engines.transformers.tf32 import tf32_of

TOKENS: Final = (4_000, 20_000, 100_000)
"""Tokens per machine of the Calibrations."""
QUICK_TOKENS: Final = (2_000, 4_000)
DEFAULT_TOKENS: Final = 4_000
SURE_NOISE: Final = 1.35
"""By more tokens than those of the default a machine of more noise than this may come into doubt: the drift of one
prompt's rollouts comes together (docs/adr/0085-calibration-by-number-format.md). It has no bar."""
DAY_TOKENS: Final = 50_000
QUICK_DAY: Final = 10_000
"""Tokens of an honest machine."""
_TOKENS_LEAST: Final = 4
"""Fewest sampled tokens of a rollout in the mean: it says how many groups have enough."""


def noise_claims(folder: Path, dtype: Dtype, order: argparse.Namespace) -> list[Claim]:
    """Bet against louder machines under each Calibration, as the order says; return the claims."""
    pair = make_pair(folder, dtype, tf32_of(torch.device("cpu"), scorer_env(order.tf32)))
    sizes, day = (QUICK_TOKENS, QUICK_DAY) if order.quick else (TOKENS, DAY_TOKENS)
    calibrated = np.concatenate(honest_groups(pair, "calibration", 1.0, _groups(MACHINES * sizes[-1])))
    machines = {
        (noise, number): groups[number :: MACHINES // len(NOISES)]
        for noise in NOISES
        for groups in [honest_groups(pair, f"noise {noise}", noise, _groups(day * MACHINES // len(NOISES)))]
        for number in range(MACHINES // len(NOISES))
    }
    rows, claims = list[list[object]](), list[Claim]()
    for size in sizes:
        draw = calibrated[: MACHINES * size]
        tables = fit({str(number): draw[number::MACHINES] for number in range(MACHINES)})
        highest, doubted, beyond = dict.fromkeys(NOISES, 0.0), 0, 0
        for (noise, _), groups in machines.items():
            seen = peaks(groups, tables)
            highest[noise] = max(highest[noise], *seen)
            if noise <= SURE_NOISE or size <= DEFAULT_TOKENS:
                doubted += sum(peak >= DOUBT_EVIDENCE for peak in seen)
            beyond += sum(beyond_bound(groups, tables))
        rows.append([size, *highest.values(), sum(p < ONE for p in tables["differs"]), doubted, beyond])
        sure = sum(noise <= SURE_NOISE or size <= DEFAULT_TOKENS for noise, _ in machines)
        orders = f"0 of {ORDERS * sure} orders"
        claims.append(
            Claim(f"louder machines doubted in {dtype}, {size:,} tokens", float(doubted), orders, 0, at_most=True)
        )
    bench.table(
        [f"{dtype}, tokens per machine", *(f"E at {noise:g} x" for noise in NOISES), "bins", "doubted", "beyond"], rows
    )
    return claims


def _groups(tokens: int) -> int:
    return tokens // (SIZE * _TOKENS_LEAST) + 1
