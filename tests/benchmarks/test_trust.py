"""The trust benchmark's own arithmetic: streams of groups, prompts, and what its bad nodes submit."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.trust import audit_share, canary_check, doubtful_days, streams, sybils
from benchmarks.trust.altered_host import ShiftedDecoder, unpack
from benchmarks.trust.doubtful_days import OURS, RULES, JudgedGroup, Strategy, doubted, gain, live
from benchmarks.trust.frauds import copied, other_seeds, replayed
from benchmarks.trust.machines import Engines, Generated, Prompts, count, part
from benchmarks.trust.policies import SWAPS
from benchmarks.trust.sampled_checks import GROUP, ROLLOUTS, Life, best_life, escape, least_share, life, saved
from benchmarks.trust.streams import INT8, MOST_TOKENS, NEVER, left_out, named, pieces, tokens_to_refusal
from benchmarks.trust.version_passes import PassedGroup, decided
from echo2.coordinator.verification.evidence import BOUND, products
from echo2.coordinator.verification.token_evidence import BINS, DIFFERS, ONE, STATISTICS, TOKEN, TokenArray
from echo2.coordinator.verification.version_pairs import VersionCount
from echo2.engines.engine import Sample
from echo2.engines.sampling import sampling
from echo2.engines.transformers.packed_linear import PackedLinear
from echo2.ledger import standing

TABLES = {BOUND: [1 << 13]} | {
    name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS
}
ENGINES = Engines(Path(), Prompts([[7, 8], [9], [10, 11, 12]], eos=1), 0)


def tokens(number: int, every: int) -> TokenArray:
    made_up = np.zeros(number, TOKEN)
    made_up["flags"][::every] = DIFFERS
    return made_up


def group(index: int, seeds: str = "") -> Generated:
    sample = Sample(tokens=[5 + index], turns=[1], logprobs=[-1.0])
    return Generated(ENGINES.prompts.job(index, 2, seeds), [sample] * 2)


def test_pieces_have_one_length_and_leave_out_what_is_left() -> None:
    assert [len(piece) for piece in pieces([tokens(100, 7), tokens(50, 7)])] == [64, 64]


def test_a_bad_node_is_refused_after_some_tokens_and_a_good_one_never() -> None:
    order = np.random.default_rng(0)
    bad, good = pieces([tokens(640, 5)]), pieces([tokens(640, 100)])
    assert tokens_to_refusal(bad, TABLES, order) < 500
    assert tokens_to_refusal(good, TABLES, order) == MOST_TOKENS


def test_a_node_with_one_token_beyond_the_bound_is_refused_with_its_group() -> None:
    groups = pieces([tokens(64, 100)])
    groups[0]["margin"][3] = (1 << 13) + 1
    assert tokens_to_refusal(groups, TABLES, np.random.default_rng(0)) == 64


@pytest.fixture
def few_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a node's groups in a few orders, for a tenth of the tokens: the bets of a benchmark are for its figures."""
    monkeypatch.setattr(streams, "ORDERS", 4)
    monkeypatch.setattr(streams, "MOST_TOKENS", 2 * streams.INT8_TOKENS)


@pytest.mark.usefixtures("few_orders")
@pytest.mark.slow
def test_machines_alike_are_not_refused_when_left_out_and_one_that_is_no_machine_of_the_class_is() -> None:
    alike = {str(number): pieces([tokens(6_400, 97 + number)]) for number in range(4)}
    assert [claim.ok for claim in left_out("bfloat16", alike)] == [True, True]
    assert [claim.ok for claim in left_out("bfloat16", alike | {"other": pieces([tokens(6_400, 5)])})] == [False, False]
    by_other = {name: pieces([tokens(6_400, 5)]) for name in alike}
    assert [claim.ok for claim in left_out("scored otherwise", by_other, alike)] == [False, False]
    assert [claim.ok for claim in left_out("scored otherwise", alike, alike)] == [True, True]


@pytest.mark.usefixtures("few_orders")
@pytest.mark.slow
def test_a_swap_that_is_not_named_makes_the_claim_short() -> None:
    good, bad = pieces([tokens(6_400, 100)]), pieces([tokens(6_400, 5)])
    assert [claim.ok for claim in named("bfloat16", TABLES, {INT8: bad, "int4": bad}, good)] == [True, True]
    assert [claim.ok for claim in named("bfloat16", TABLES, {INT8: bad, "int4": good}, good)] == [False, True]


def day_of(*groups: tuple[bool, int]) -> list[list[JudgedGroup]]:
    return [[JudgedGroup(false, power, power >= 6) for false, power in groups]]


def test_a_key_that_cheats_while_not_in_doubt_gains_by_its_groups_before_doubt_alone() -> None:
    days = day_of((True, 1), (True, 3), (False, 2), (True, 2), (False, 1))
    assert gain(days, RULES["doubt ends with E"]) == (2 / 5, 3 / 5)
    assert gain(days, RULES[OURS]) == (1 / 5, 3 / 5)
    assert gain(days, RULES["and 10^3 unpaid"]) == (1 / 5, 1 / 5)


@pytest.mark.parametrize(("powers", "paid"), [((1, 3, 2), 2 / 3), ((1, 4, 2), 1 / 3), ((1, 3, 3), 1 / 3)])
def test_a_day_is_paid_if_it_ends_below_doubt_and_stayed_below_the_peak(powers: tuple[int, ...], paid: float) -> None:
    days = day_of(*zip((True, True, False), powers, strict=True))
    assert gain(days, RULES[OURS]) == (1 / 3, paid)


def test_a_refused_group_gains_nothing_and_leaves_the_day_in_doubt() -> None:
    assert gain(day_of((True, 6), (True, 2)), RULES[OURS]) == (0, 0)


@pytest.mark.slow
def test_a_swap_that_is_hardly_seen_makes_the_claim_on_doubtful_days_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtful_days, "DAYS", 2)
    monkeypatch.setattr(doubtful_days, "GROUPS", 60)
    good, bad = pieces([tokens(6_400, 100)]), pieces([tokens(6_400, 5)])
    assert [claim.ok for claim in doubted("bfloat16", TABLES, good, {INT8: bad, "T = 0.95": good})] == [True] * 3
    assert [claim.ok for claim in doubted("bfloat16", TABLES, good, {INT8: good, "T = 0.95": bad})] == [False] * 2 + [
        True
    ]


def test_where_every_group_is_checked_a_cheat_earns_its_own_work_and_nothing_false_is_trained_on() -> None:
    assert life(3, false=1.0, escapes=0.0) == (1, 0)


@pytest.mark.parametrize(("rank", "checked", "pay"), [(3, 0.5, 4 / 3), (3, 0.1, 4.0), (30, 0.1, 1.3)])
def test_a_cheat_whose_groups_are_checked_by_chance_is_paid_for_what_it_did_not_make(
    rank: int, checked: float, pay: float
) -> None:
    assert life(rank, 1.0, 1 - checked).pay == pytest.approx(pay)


def test_the_yield_of_a_cheat_is_that_of_lives_that_are_played() -> None:
    random, rank, false, checked = np.random.default_rng(1), 3, 2, 4
    paid = work = handed = trained = 0.0
    for _ in range(20_000):
        paid, work, handed = paid + rank, work + rank, handed + rank
        while True:
            work, handed = work + 1 - false / GROUP, handed + 1
            if random.choice(GROUP, checked, replace=False).min() < false:  # the first ones are false
                break
            paid, trained = paid + 1, trained + false / GROUP
    played = Life(paid / work, trained / handed)
    assert played == pytest.approx(life(rank, false / GROUP, escape(checked, false)), rel=0.03)


@pytest.mark.parametrize("rank", [3, 30])
def test_where_a_rollout_of_every_group_is_checked_no_cheat_is_paid_more_than_its_own_work(rank: int) -> None:
    lives = [best_life(rank, checked) for checked in ROLLOUTS]
    assert max(one.pay for one in lives) == pytest.approx(1)
    shares = [one.trained for one in lives]
    assert shares == sorted(shares), "the fewer are checked, the more is false and trained on"


def test_a_cheat_gains_a_twentieth_at_the_least_share() -> None:
    assert life(30, 1.0, 1 - least_share(30)).pay == pytest.approx(1.05)


def test_what_is_not_checked_saves_its_part_of_the_scorers_time() -> None:
    assert saved(1.0, 29, 100) == 0
    assert saved(0.0, 29, 100) == pytest.approx(29 / 129)
    assert saved(0.5, 100, 100) == pytest.approx(0.25)


def test_a_key_of_which_few_groups_are_compared_hands_in_more_false_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtful_days, "DAYS", 1)
    monkeypatch.setattr(doubtful_days, "GROUPS", 30)
    good, bad = ([products(one, TABLES) for one in pieces([tokens(640, every)])] for every in (100, 5))
    always = Strategy(10**9, 1, 1.0, in_doubt=True)
    whole, few = (
        sum(gain(live(always, good, bad, seed, share=share), RULES[OURS]).trained for seed in range(6)) / 6
        for share in (1.0, 0.1)
    )
    assert whole < 0.05
    assert few > whole + 0.1


def test_a_key_with_a_refused_group_is_compared_whole_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtful_days, "DAYS", 1)
    monkeypatch.setattr(doubtful_days, "GROUPS", 120)
    bad = [products(one, TABLES) for one in pieces([tokens(64, 100)])]
    cheat = Strategy(10**9, 1, 1.0, in_doubt=True)
    (groups,) = live(cheat, bad, bad, 0, beyond=[True], share=0.05)
    first = [group.refused for group in groups].index(True)
    assert first > 0
    assert all(group.refused for group in groups[first:])


def passed(newer: int, older: int) -> list[PassedGroup]:
    return [PassedGroup(1_000, VersionCount(newer, older))]


def test_two_passes_name_the_stale_node_and_an_honest_one_that_is_named_makes_the_claim_short() -> None:
    nodes = {"honest": passed(12, 8), NEVER: passed(8, 12)}
    assert [claim.ok for claim in decided("bfloat16", nodes, NEVER)] == [True, True]
    nodes = {"honest": passed(8, 12), NEVER: passed(12, 8)}
    assert [claim.ok for claim in decided("bfloat16", nodes, NEVER)] == [False, False]


def test_a_job_has_its_prompt_and_its_own_seeds() -> None:
    one, other, later = (ENGINES.prompts.job(index, 3) for index in (1, 2, 4))
    assert (one.prompt, one.prompt) == ([9], later.prompt)
    assert len({*one.seeds, *other.seeds, *later.seeds}) == 9
    assert part(one, slice(1, 2)).seeds == one.seeds[1:2]


def test_frauds_submit_tokens_under_leases_for_which_they_were_not_sampled() -> None:
    groups = [group(0), group(1)]
    assert count(groups) == 4
    for fraud in (other_seeds, copied, replayed):
        for bad, honest in zip(fraud(ENGINES, groups), groups, strict=True):
            assert bad.samples in (groups[0].samples, honest.samples)
            assert set(bad.job.seeds).isdisjoint(honest.job.seeds)
    assert [one.samples for one in replayed(ENGINES, groups)] == [groups[0].samples] * 2


@pytest.mark.parametrize("name", [name for name in SWAPS if name.startswith("int")])
def test_quantised_weights_have_few_values_per_scale(name: str) -> None:
    layer = nn.Linear(64, 4)
    with torch.no_grad():
        SWAPS[name](layer)
    group_size = 64 if name == "int8" else 32
    assert all(len(row.unique()) <= (255 if name == "int8" else 15) for row in layer.weight.reshape(-1, group_size))


def test_half_the_layers_are_every_second_one() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList(nn.ModuleDict({"o_proj": nn.Linear(2, 2)}) for _ in range(4))})
    with torch.no_grad():
        SWAPS["half the layers"](model)
    zero = [not parameter.any() for parameter in model.parameters()]
    assert zero == [False, False, True, True] * 2


def test_the_altered_decoder_takes_the_noise_of_a_later_token() -> None:
    decoder = ShiftedDecoder.__new__(ShiftedDecoder)
    decoder._device, decoder.shift = torch.device("cpu"), 5
    tokens, _ = decoder._choose(torch.zeros(1, 64), [(bytes(16), 2, False)])
    later, _ = sampling.choose(torch.zeros(1, 64), sampling.keys([(bytes(16), 7)]))
    sooner, _ = sampling.choose(torch.zeros(1, 64), sampling.keys([(bytes(16), 2)]))
    assert tokens.tolist() == later.tolist() != sooner.tolist()


def test_an_unpacked_model_has_plain_layers_with_the_same_weights() -> None:
    plain = nn.Linear(4, 2)
    model = nn.Sequential(PackedLinear(plain))
    unpack(model)
    assert type(model[0]) is nn.Linear
    assert model[0].weight is plain.weight
    assert model[0].bias is plain.bias


@pytest.mark.parametrize("strategy", ["", "idle", "junk", "a group", "work"])
@pytest.mark.slow_but("")
def test_a_run_beside_sybils_counts_what_they_get(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sybils, "HONEST", 6)
    monkeypatch.setattr(sybils, "SYBILS", 12)
    monkeypatch.setattr(sybils, "BATCH", 4)
    monkeypatch.setattr(sybils, "BEFORE", 3.0)
    monkeypatch.setattr(standing, "PROVEN_AUDITED_GROUPS", 2)
    run = sybils.SybilRun(tmp_path, strategy, seed=0)
    outcome = run.play(4.0)
    run.world.group_service.ledger.verify()
    run.world.close()
    assert outcome.steps > 1
    assert (outcome.leases > 0) == bool(strategy)
    assert (outcome.work > 0) == (outcome.groups > 0) == (strategy in ("a group", "work"))
    assert 0 <= outcome.told < 0.7


@pytest.mark.slow
def test_the_share_of_audits_and_canaries_is_measured_in_accepted_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sybils, "HONEST", 6)
    monkeypatch.setattr(sybils, "BATCH", 4)
    monkeypatch.setattr(sybils, "BEFORE", 3.0)
    monkeypatch.setattr(audit_share, "NEWCOMERS", 6)
    (claim,) = audit_share.audit_share(12.0)
    assert claim.at_most
    assert 0 <= claim.ratio <= claim.bar


def test_the_canary_check_compares_a_group_with_itself() -> None:
    behaviour = msgspec.msgpack.encode([np.array([-1.0], "<f4").tobytes()] * 2)
    assert 0 < canary_check._checked(canary_check._submission(group(1)), behaviour) < 1
