"""The bounds on honest nodes of one rounding: fitted from honest groups, signed, and named by hash. Pure.

Rules
1. The tokens of all machines are fitted together: per statistic and gap bin an upper bound on the mean, with confidence
   `CONFIDENCE`. Each machine counts with as many tokens as the one that has the fewest, spread over all of its own.
2. The bound is that of Hoeffding (1963): the greatest q with n kl(mean, q) <= ln(1 / (1 - confidence)). It holds for
   any values from 0 to 1.
3. The share of tokens that differ does not rise with the gap. So for `differs` the bound of a bin is the least of any
   run of bins that ends at it or before it (isotonic). Other statistics have no such order.
4. The bounds are those of machines that round `NOISE_ALLOWANCE` times as much, whatever the number of tokens. Drift and
   margins are that much larger. A token differs at a gap that much wider; gaps are spread evenly near 0
   (coordinator/verification/token_evidence.py, rule 4), so a bin then has the tokens of one that much narrower. A token
   that differs misses by its gap where it is the runner-up, so its margin says where in its bin it lies. A bound of
   `above` or `below` under 1/2 counts as 1/2: another machine need not lean to the same side.
5. A bin without tokens has p = 1: it counts for nothing (coordinator/verification/evidence.py, rule 2). Of `differs` so
   has a bin in which more than half of the tokens may differ, and one above the bound of rule 6, in which none may.
6. The bound on a single token is `MARGIN_ALLOWANCE` times the drift that one token in `1 / DRIFT_SHARE` exceeds. A
   margin is what rounding did to two logits, and is seen where they nearly tie; drift shows the same at each token, so
   `TOKENS_LEAST` tokens per machine suffice. Where the gap is above the bound, no other token is right. A class whose
   drift leaves its range has no bound: it is `MOST_MARGIN`.
7. Machines of a further engine or device only widen the bounds: of two fits the greater value counts in each bin.
8. A Calibration is valid for one run and rounding (engines/registry.py, rule 5). Leases name it by the hash of the
   sealed document (`document_hash`); its tables are integers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta
from numpy.typing import NDArray

from echo2.coordinator.verification.evidence import BOUND, LEAST_P, Tables
from echo2.coordinator.verification.token_evidence import (
    BINS,
    DIFFERS,
    GAP_EDGES,
    MOST_DRIFT,
    MOST_MARGIN,
    ONE,
    STATISTICS,
    TokenArray,
)
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import Count, Hash, Milliseconds, Name, Wire, decode, encode
from echo2.protocol.authority import RoleKeys

CONFIDENCE: Final = 0.95
NOISE_ALLOWANCE: Final = 1.7
"""docs/adr/0085-calibration-by-number-format.md has the figures."""
DRIFT_SHARE: Final = 1e-3
MARGIN_ALLOWANCE: Final = 5.0
"""docs/adr/0107-the-factor-of-the-bound-stays.md compares it with others."""
FITTED_STATISTICS: Final = ("differs", "margin", "drift", "above", "below")
GAP_STATISTICS: Final = frozenset(("differs", "margin"))
"""Statistics of tokens that differ, which the gap decides."""
HALF_STATISTICS: Final = frozenset(("above", "below"))
TOKENS_LEAST: Final = 2_000
"""Fewest tokens per machine of a Calibration."""

Bound = Annotated[int, Meta(ge=LEAST_P, le=ONE)]
Table = Annotated[list[Bound], Meta(min_length=BINS, max_length=BINS)]


class TooFewTokens(ValueError):
    """There are not enough honest tokens to calibrate a class by."""


class Calibration(Wire, frozen=True):
    """coordinator (ledger): the bounds by which groups are judged. `rounding`: that of their engine classes, as
    bfloat16. `classes`: engine classes whose engines were measured, engine/dtype/device. `devices`: kinds of device
    whose landed groups widen the bounds (coordinator/verification/device_landings.py).
    `builds`: builds of the engines measured. `era`, `version`, `root`: the weights that they ran. `machines`: machine
    -> its number of tokens. `tables`: statistic -> p of each gap bin, in units of 2^-32. `bound`: greatest margin of a
    token, in units of 2^-14 nats. `at`: ms."""

    run: Hash
    rounding: Name
    classes: Annotated[list[Name], Meta(min_length=1, max_length=16)]
    devices: Annotated[list[Name], Meta(max_length=16)]
    builds: Annotated[list[Name], Meta(max_length=64)]
    era: Count
    version: Count
    root: Hash
    machines: Annotated[dict[Name, Count], Meta(max_length=256)]
    tables: Annotated[dict[Name, Table], Meta(max_length=64)]
    bound: Annotated[int, Meta(ge=1, le=MOST_MARGIN)]
    at: Milliseconds


def fit(machines: Mapping[str, TokenArray], allowance: float = MARGIN_ALLOWANCE) -> dict[str, list[int]]:
    """Return the tables of a class and its `BOUND`, from the honest tokens of its machines (rules 1 to 6).
    `allowance`: factor of rule 6; another one only for measurements. Raises `TooFewTokens`."""
    for name, tokens in machines.items():
        if len(tokens) < TOKENS_LEAST:
            raise TooFewTokens(f"machine {name} has {len(tokens)} tokens, the least is {TOKENS_LEAST}")
    if not machines:
        raise TooFewTokens("there is no machine to calibrate by")
    fewest = min(map(len, machines.values()))
    pooled = np.concatenate([tokens[np.arange(fewest) * len(tokens) // fewest] for tokens in machines.values()])
    louder = _louder(pooled)
    tables = {name: _table(name, pooled, louder) for name in FITTED_STATISTICS} | {
        BOUND: [_margin_bound(pooled, allowance)]
    }
    edges = (0, *GAP_EDGES)  # a quarter of the bound's unit
    tables["differs"] = [
        ONE if 2 * p > ONE or edge > 4 * tables[BOUND][0] else p
        for p, edge in zip(tables["differs"], edges, strict=True)
    ]
    return tables


def widest(fitted: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    """Return the widest bounds of several fits (rule 7)."""
    return {name: [max(bins) for bins in zip(*(one[name] for one in fitted), strict=True)] for name in fitted[0]}


def _margin_bound(tokens: TokenArray, allowance: float) -> int:
    drift = int(np.quantile(np.abs(tokens["drift"].astype(np.int64)), 1 - DRIFT_SHARE, method="higher"))
    return max(1, math.ceil(allowance * drift / 4)) if drift < MOST_DRIFT else MOST_MARGIN


def _louder(tokens: TokenArray) -> TokenArray:
    """Return the tokens with `NOISE_ALLOWANCE` times the noise, those that differ in the bin of the gap that their own
    becomes (rule 4)."""
    louder = tokens.copy()
    louder["margin"] = np.minimum(np.ceil(NOISE_ALLOWANCE * tokens["margin"]), MOST_MARGIN)
    louder["drift"] = np.clip(np.rint(NOISE_ALLOWANCE * tokens["drift"]), -MOST_DRIFT - 1, MOST_DRIFT)
    edges = np.array((0, *GAP_EDGES, 2 * GAP_EDGES[-1]))
    gaps = np.clip(4 * tokens["margin"].astype(np.int64), edges[tokens["gap"]], edges[tokens["gap"] + 1] - 1)
    wider = np.searchsorted(GAP_EDGES, NOISE_ALLOWANCE * gaps, side="right")
    louder["gap"] = np.where(tokens["flags"] & DIFFERS, wider, tokens["gap"])
    return louder


def _table(name: str, tokens: TokenArray, louder: TokenArray) -> list[int]:
    bounds = _bounds(name, tokens, louder)
    least = 0.5 if name in HALF_STATISTICS else 0.0
    wide = np.where(np.isnan(bounds), 1.0, np.maximum(bounds, least))
    return [min(ONE, max(LEAST_P, math.ceil(value * ONE))) for value in wide.tolist()]


def _bounds(name: str, tokens: TokenArray, louder: TokenArray) -> NDArray[np.float64]:
    """Return the upper bound of each gap bin; NaN where there is no token."""
    values, _ = STATISTICS[name](louder)
    by_gap = name in GAP_STATISTICS
    numbers = np.bincount(tokens["gap"], minlength=BINS).astype(np.float64)
    sums = np.bincount((louder if by_gap else tokens)["gap"], values / ONE, minlength=BINS).astype(np.float64)
    if by_gap:
        numbers /= NOISE_ALLOWANCE
    if name == "differs":
        return _isotonic(sums, numbers)
    return np.array([upper_bound(total, number) for total, number in zip(sums, numbers, strict=True)])


def _isotonic(sums: NDArray[np.float64], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds under rule 3."""
    best = np.full(BINS, np.nan)
    for last in range(BINS):
        runs = [slice(first, last + 1) for first in range(last + 1)]
        bounds = [upper_bound(float(sums[run].sum()), float(numbers[run].sum())) for run in runs]
        best[last] = np.fmin.reduce([*bounds, *best[:last]])
    return best


def upper_bound(total: float, number: float) -> float:
    """Return the upper bound on a mean of values from 0 to 1, by their sum and number (rule 2); NaN for no values."""
    if not number:
        return math.nan
    mean = min(1.0, total / number)
    least, most = mean, 1.0
    allowed = -math.log(1 - CONFIDENCE) / number
    for _ in range(60):
        middle = (least + most) / 2
        least, most = (middle, most) if _divergence(mean, middle) <= allowed else (least, middle)
    return most


def _divergence(p: float, q: float) -> float:
    """Return the Kullback-Leibler divergence of two coins, nats."""
    if q >= 1.0:
        return 0.0 if p >= 1.0 else math.inf
    heads = p * math.log(p / q) if p > 0 else 0.0
    tails = (1 - p) * math.log((1 - p) / (1 - q)) if p < 1 else 0.0
    return heads + tails


def tables_of(calibration: Calibration) -> Tables:
    """Return the tables and the bound, without tables of statistics that this build does not know. Raises `Malformed`
    if one is missing."""
    missing = [name for name in FITTED_STATISTICS if name not in calibration.tables]
    if missing:
        raise Malformed(f"the Calibration of {calibration.rounding} has no table {missing[0]}")
    return {name: calibration.tables[name] for name in FITTED_STATISTICS} | {BOUND: [calibration.bound]}


def seal_calibration(calibration: Calibration, key: Ed25519PrivateKey) -> bytes:
    """Sign a Calibration by the ledger key."""
    return seal("calibration", calibration.run, encode(calibration), key)


def verify_calibration(sealed: bytes, run: bytes, ledger: RoleKeys) -> Calibration:
    """Verify a sealed Calibration by the ledger role of the Root, and return it. Raises `PeerFault`."""
    calibration = decode(verify_envelope(sealed, "calibration", run, ledger.keys, ledger.threshold), Calibration)
    if calibration.run != run:
        raise Malformed("the Calibration is of another run")
    tables_of(calibration)
    return calibration
