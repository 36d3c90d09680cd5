"""Rollouts for the operator's eyes: which are listed, in which order, and what is shown of them."""

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.submissions import rollouts_report
from echo2.coordinator.verdicts.stored_rollouts import ShownGroup, TextPart, Wanted, list_groups, read_group
from echo2.p2p.identity import peer_id
from echo2.protocol.leases import Lease
from echo2.runtime.errors import LocalFault
from tests.support.group_world import ALICE, BOB, TEXT, World, group, honest_scores, rollout

DAY = 24 * 3_600_000


def answered(world: World, right: int, node: bytes = ALICE, version: int = 0) -> Lease:
    """Have a group accepted of whose answers the first `right` are right."""
    lease = world.lease(node, version)
    solved = TEXT.decode(lease.prompt).strip(">")[::-1]
    texts = [solved if number < right else f"no {number}" for number in range(len(lease.seeds))]
    world.submit(group(lease, texts), node)
    world.decide_all()
    return lease


def listed(world: World, **wanted: object) -> list[ShownGroup]:
    chosen: Wanted = msgspec.convert(wanted, Wanted)
    return list(list_groups(world.group_service.database, TEXT, chosen))


def ids(groups: list[ShownGroup]) -> list[str]:
    return [one.lease for one in groups]


def test_a_group_is_shown_with_prompt_answers_rewards_and_probabilities(world: World) -> None:
    lease = answered(world, right=1)
    shown = read_group(world.group_service.database, TEXT, lease.id)
    assert (shown.node, shown.task, shown.index, shown.version) == (peer_id(ALICE), "reverse", lease.index, 0)
    assert shown.prompt == TEXT.decode(lease.prompt)
    first, second = shown.answers[:2]
    assert (first.success, second.success) == (True, False)
    assert first.reward is not None
    assert second.reward is not None
    assert first.reward > second.reward
    assert second.parts == [TextPart(by="policy", text="no 1")]
    assert [text for text, _ in second.tokens[:4]] == ["n", "o", " ", "1"]
    assert all(probability == pytest.approx(math.exp(-0.5)) for _, probability in second.tokens)


def test_the_newest_come_first_and_the_best_and_worst_by_mean_reward(world: World) -> None:
    few, most, none = (answered(world, right).id.hex() for right in (1, 2, 0))
    assert ids(listed(world)) == [none, most, few]
    assert ids(listed(world, order="best")) == [most, few, none]
    assert ids(listed(world, order="worst", most=2)) == [none, few]


def test_groups_are_chosen_by_node_version_prompt_and_words(world: World) -> None:
    alices, bobs = answered(world, 1, ALICE), answered(world, 0, BOB)
    world.learner_at(1)
    later = answered(world, 1, ALICE, version=1)
    assert ids(listed(world, node=BOB)) == [bobs.id.hex()]
    assert ids(listed(world, version=1)) == [later.id.hex()]
    assert ids(listed(world, task="reverse", prompt=alices.index)) == [alices.id.hex()]
    assert ids(listed(world, task="add")) == []
    assert ids(listed(world, words="NO 0")) == [bobs.id.hex()]


def test_a_refused_group_is_listed_when_asked_for(world: World) -> None:
    answered(world, 1)
    lease = world.lease(BOB)
    world.submit(group(lease), BOB)
    (waiting,) = world.group_service.list_undecided(10)
    scores = [
        msgspec.structs.replace(one, margins=[9.0] * len(one.margins)) for one in honest_scores(waiting.submission)
    ]
    assert world.decide(waiting, scores).verdict == "refused"
    (shown,) = listed(world, refused=True)
    assert shown.lease == lease.id.hex()
    assert shown.verdict == "refused"


def test_a_group_is_gone_after_its_day(world: World) -> None:
    lease = answered(world, 1)
    world.now += 2 * DAY
    at = world.group_service.progress
    while at is not None and world.group_service.forget({lease.id}, at.step, at.era, world.now):
        pass
    assert listed(world) == []
    assert read_group(world.group_service.database, TEXT, lease.id) is None


def test_a_list_that_is_read_slowly_holds_no_snapshot(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, most = answered(world, 1), answered(world, 2)
    monkeypatch.setattr(rollouts_report, "tokenizer_of", lambda place: TEXT)
    groups = rollouts_report.find_groups(RunFolder(tmp_path), Wanted())
    assert next(groups).lease == most.id.hex()
    world.group_service.database.do("UPDATE verdicts SET code = 'later'")
    busy, _, _ = world.group_service.database.all("PRAGMA wal_checkpoint(TRUNCATE)")[0]
    assert not busy
    assert [(one.lease, one.code) for one in groups] == [(few.id.hex(), "later")]


@pytest.fixture
def hostile() -> ShownGroup:
    text = "\x1b[2J\u202e right\n\nlease 00  version 9\n" + "w" * 100_000
    parts = [{"by": "policy", "text": text}, {"by": "task", "text": "no"}, {"by": "policy", "text": text}]
    answer = {"sample": 0, "reward": 1.0, "success": True, "parts": parts, "tokens": [(text, 0.5)]}
    fields = {
        "lease": "00" * 16, "node": "12D3", "name": "owl", "task": "reverse", "index": 3, "era": 1, "version": 2,
        "step": None, "at": 0, "verdict": "accepted", "code": "ok", "prompt": text, "answers": [answer],
    }  # fmt: skip
    return msgspec.convert(fields, ShownGroup)


@pytest.mark.parametrize(
    "drawn", [rollouts_report.brief_text, lambda one: "\n".join(rollouts_report.full_lines(one, 0))]
)
def test_hostile_texts_stand_behind_a_bar_and_control_nothing(
    hostile: ShownGroup, drawn: Callable[[ShownGroup], str]
) -> None:
    lines = drawn(hostile).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("lease 00") for line in lines)
    assert [line for line in lines if "version 9" in line and " | " not in line] == []


def test_a_list_shows_the_best_and_the_worst_answer_briefly(world: World) -> None:
    lease = answered(world, right=1)
    lines = rollouts_report.brief_text(listed(world)[0]).split("\n")
    assert lease.id.hex() in lines[0]
    assert "✓ | " in lines[2]
    assert "no " in lines[3]
    assert len(lines) == 4


def test_an_answer_that_is_not_there_is_named(hostile: ShownGroup) -> None:
    with pytest.raises(LocalFault, match="answers 0 to 0, and no 4"):
        rollouts_report.full_lines(hostile, 4)


HOSTILE_ROLLOUTS: dict[str, dict[str, object]] = {
    "log-probabilities that are no numbers": {"logprobs": b"12345"},
    "a probability without end": {"logprobs": b"\0\0\x80\x7f" * 4},
    "a token beyond the vocabulary": {"tokens": [2**31 - 1] * 4},
    "turns that do not add up": {"turns": [2**40, 7, 2**40]},
    "no turn": {"turns": []},
}


@pytest.mark.parametrize("why", HOSTILE_ROLLOUTS)
def test_a_refused_group_of_any_numbers_hides_no_other(why: str, world: World) -> None:
    lease = world.lease()
    world.submit(group(lease, rollouts=[rollout(lease, "bad", **HOSTILE_ROLLOUTS[why])] * 2))
    world.decide_all()
    assert ids(listed(world, refused=True)) == [lease.id.hex()]
    shown = read_group(world.group_service.database, TEXT, lease.id)
    assert shown is not None
    assert len(shown.answers) == 2
    assert all(rollouts_report.brief_text(shown) for _ in shown.answers)
    assert rollouts_report.full_lines(shown, 0)


def test_a_list_decodes_no_token_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(world, right=1)
    alone = []
    decode = type(TEXT).decode
    monkeypatch.setattr(type(TEXT), "decode", lambda self, some: (alone.append(len(some) == 1), decode(self, some))[1])
    (shown,) = listed(world)
    assert not any(alone)
    assert shown.answers[0].tokens == []
