"""Test soft landings: which groups land, how many, and what several parties' groups widen."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit, widest
from echo2.coordinator.verification.device_landings import (
    KNOWN_AFTER,
    LANDING_MARGIN,
    LANDING_MEMORY_MS,
    LANDINGS_OF_PARTY,
    LANDINGS_OF_ROUNDING,
    LANDINGS_STORED,
    TOKENS_MOST,
    DeviceLandings,
    LandedKind,
    landed_kinds,
    landed_tables,
    median_of,
)
from echo2.coordinator.verification.evidence import BOUND, Tables
from echo2.coordinator.verification.token_evidence import ONE, TOKEN, TokenArray

TABLES: Tables = {"differs": [ONE], BOUND: [1_000]}
CARD, KIND = "vllm/bfloat16/cuda", "vllm/bfloat16/cuda, a card"
NOW = 10 * LANDING_MEMORY_MS


class Landed:
    """A database with a node per number, and the groups that it hands in."""

    def __init__(self, database: Database) -> None:
        self.database, self.landings, self.leases = database, DeviceLandings(database), 0

    def node(self, number: int, *, engine: str = CARD, device: str = "a card", groups: int = 0) -> bytes:
        key = number.to_bytes(32, "big")
        self.database.do(
            "INSERT OR REPLACE INTO nodes"
            " (key, name, software, engine, device, addresses, first_seen, last_seen)"
            " VALUES (?, '', '', ?, ?, x'', 0, 0)",
            (key, engine, device),
        )
        for verdict, count in (("accepted", groups), ("refused", 100)):
            self.database.do(
                "INSERT OR REPLACE INTO sums VALUES (?, ?, 'a code', ?, 0, 0, 0, 0)", (key, verdict, count)
            )
        return key

    def group(self, node: bytes, party: str, tokens: TokenArray | None = None, now: int = NOW) -> str | None:
        self.leases += 1
        lease = self.leases.to_bytes(16, "big")
        packed = (np.zeros(700, TOKEN) if tokens is None else tokens).tobytes()
        self.database.do("INSERT INTO compared VALUES (?, ?, x'')", (lease, packed))
        return self.landings.take(node, lease, party, "bfloat16", TABLES, now)

    def stored(self) -> int:
        return int(self.database.value("SELECT count(*) FROM landings"))


@pytest.fixture
def landed(tmp_path: Path) -> Iterator[Landed]:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.do("PRAGMA foreign_keys = OFF")
        yield Landed(database)


def noisy(seed: int, number: int, drift: int) -> TokenArray:
    tokens = np.zeros(number, TOKEN)
    tokens["drift"] = np.random.default_rng(seed).integers(-drift, drift + 1, number)
    return tokens


def test_a_group_of_an_unknown_kind_lands_until_the_run_knows_the_kind(landed: Landed) -> None:
    node = landed.node(1, groups=KNOWN_AFTER)
    assert landed.group(node, "a subnet") == KIND
    landed.node(2, groups=1)
    assert landed.group(node, "a subnet") is None
    landed.node(3, device="another card")
    assert landed.group(landed.node(3, device="another card"), "a subnet") == "vllm/bfloat16/cuda, another card"


def test_a_node_that_no_longer_says_what_it_computed_in_is_judged_as_any_other(landed: Landed) -> None:
    assert landed.group(landed.node(1, engine="transformers/float16/cuda"), "a subnet") is None
    assert landed.group(b"of no node".ljust(32), "a subnet") is None


def test_a_new_name_of_a_device_is_no_free_pass(landed: Landed) -> None:
    codes = [landed.group(landed.node(number, device=f"card {number}"), "one subnet") for number in range(10)]
    assert [code is not None for code in codes] == [number < LANDINGS_OF_PARTY for number in range(10)]
    many = [landed.group(landed.node(number, device=f"card {number}"), f"subnet {number}") for number in range(20, 120)]
    assert sum(code is not None for code in many) == LANDINGS_OF_ROUNDING - LANDINGS_OF_PARTY
    assert landed.group(landed.node(1), "one subnet", now=NOW + LANDING_MEMORY_MS) == KIND


def test_what_no_rounding_does_never_lands(landed: Landed) -> None:
    tokens = np.zeros(700, TOKEN)
    tokens["margin"][5] = LANDING_MARGIN * TABLES[BOUND][0]
    assert landed.group(landed.node(1), "a subnet", tokens) == KIND
    tokens["margin"][5] += 1
    assert landed.group(landed.node(2), "another subnet", tokens) is None


def test_few_tokens_of_few_groups_are_stored(landed: Landed) -> None:
    for number in range(LANDINGS_STORED + 9):
        node = landed.node(number, device=f"card {number}")
        landed.group(node, f"subnet {number}", np.zeros(100_000, TOKEN), now=NOW + number * LANDING_MEMORY_MS)
    assert landed.stored() == LANDINGS_STORED
    length = "SELECT max(length(tokens)) FROM landings"
    assert landed.database.value(length) == TOKENS_MOST * TOKEN.itemsize
    assert landed.database.value("SELECT min(at) FROM landings") == NOW + 9 * LANDING_MEMORY_MS


def test_three_parties_widen_the_bounds_by_the_median_one(landed: Landed) -> None:
    own = fit({"own": noisy(1, 8_000, 500)})
    parties = {
        f"subnet {number}": noisy(number, TOKENS_LEAST, drift) for number, drift in enumerate((900, 1_500, 9_000))
    }
    for number, (party, tokens) in enumerate(parties.items()):
        assert landed_tables(landed.database, "bfloat16", KIND) is None
        for half in np.split(tokens, 2):
            assert landed.group(landed.node(number), party, half) == KIND
    assert landed_kinds(landed.database, "bfloat16") == [LandedKind(KIND, 6, 3)]
    assert landed_kinds(landed.database, "float16") == []
    tables = landed_tables(landed.database, "bfloat16", KIND)
    assert tables == fit({"the median": parties["subnet 1"]})
    assert all(p <= q for name in own for p, q in zip(own[name], widest([own, tables])[name], strict=True))


def test_a_party_with_few_tokens_does_not_count(landed: Landed) -> None:
    for number in range(3):
        landed.group(landed.node(number), f"subnet {number}", noisy(number, TOKENS_LEAST - (number == 2), 900))
    assert landed_kinds(landed.database, "bfloat16") == [LandedKind(KIND, 3, 2)]
    assert landed_tables(landed.database, "bfloat16", KIND) is None


def test_of_two_values_in_the_middle_the_lower_one_counts() -> None:
    assert median_of([{"a": [1, 9]}, {"a": [4, 2]}, {"a": [3, 3]}, {"a": [8, 1]}]) == {"a": [3, 2]}
