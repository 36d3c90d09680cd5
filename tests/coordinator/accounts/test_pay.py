from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.pay import PAY_RULES, PayRule, pay_rule
from echo2.coordinator.run.price_mode import MARKET, POINTS
from echo2.ledger.ledger_entries import ESCROW, FUND, accrued_account
from echo2.p2p.identity import peer_id
from echo2.protocol.group_weights import GroupLengths, whole_weight
from echo2.runtime.errors import LocalFault
from tests.support.group_world import ALICE, SPEC, World, group


@pytest.mark.parametrize(("tokens", "expected"), [(128, 1000), (9, 70), (1, 8), (8, 63), (16, 125), (1024, 8000)])
def test_the_weight_of_a_rollout_is_linear_in_its_tokens(tokens: int, expected: int) -> None:
    assert whole_weight(None, tokens, [()]) == expected


def test_without_costs_a_group_earns_the_sum_of_its_rollouts() -> None:
    earned = PAY_RULES["points"].group_earnings
    assert earned(None, GroupLengths(2, [[3], [4, 2, 3]])) == whole_weight(None, 5, [()]) + whole_weight(None, 11, [()])
    assert earned(None, GroupLengths(7, [])) == 0


def test_a_new_run_states_a_price_mode_that_this_build_has() -> None:
    assert pay_rule(POINTS) is PAY_RULES["points"]
    assert pay_rule(MARKET) is PAY_RULES["market"]


def test_an_accepted_group_is_paid_out_of_escrow_which_the_fund_fills(world: World) -> None:
    world.accepted()
    balances = world.group_service.ledger.balances()
    paid = balances[accrued_account(peer_id(ALICE))]
    assert paid > 0
    assert balances[FUND] + balances[ESCROW] + paid == 0


def test_a_run_of_a_price_mode_that_this_build_lacks_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="price mode auction is not in this build, which has market, points"):
        World(tmp_path, spec=msgspec.structs.replace(SPEC, price_mode="auction"))


def test_the_pay_rule_is_that_of_the_runs_price_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        PAY_RULES, "flat", PayRule(lambda _costs, _prompt, turns: 7 * len(turns), PAY_RULES["points"].fund)
    )
    world = World(tmp_path, spec=msgspec.structs.replace(SPEC, price_mode="flat"))
    world.submit(group(world.lease()))
    (receipt,) = world.decide_all()
    assert receipt.weight == 7 * SPEC.group_size
