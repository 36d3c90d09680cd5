"""Measure the cost of tasks in their environment's process: `python -m benchmarks.tasks [--quick] [--only NAME ...]`.

    math     answers per CPU second of `math:PATH` against bare Math-Verify on the same texts; beside it, the comparison
             of two answers by itself
    poker    hands per CPU second of `poker:kuhn`, `poker:leduc` and `poker:holdem` against bare pokerkit with the same
             cards and moves

Ours is `Environment.score`, as the coordinator calls it after verification: pipe, decoding of tokens, replay, reward;
CPU of both ends together. The anchor runs in this process. Bare Math-Verify reads each problem's answer once, as ours
does; bare pokerkit plays each hand to its end by itself. Needs the extras `math` and `poker`.

    step     CPU of a `step` round trip at both ends together, over libp2p on loopback, without the environment's own
    turns    CPU of the node for a served episode of four turns, against as many tokens in one turn

The last two need none of the extras (benchmarks/step_round_trip.py, benchmarks/turns_cost.py).
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured
from benchmarks.step_round_trip import round_trips
from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.protocol.task_kinds import SERVED_KIND, SINGLE_KIND
from echo2.tasks import plugins
from echo2.tasks.math import equality
from echo2.tasks.poker.poker_hand import RULES
from echo2.tasks.poker.poker_task import PokerTask
from echo2.tasks.task import Transcript
from echo2.tasks.tokenizer import FileTokenizer, load

EOS_NAME: Final = "<eos>"
GROUP: Final = 16
LIMIT: Final = 4_096
BAR: Final = 0.8
COMPARISON_BAR: Final = 1.1
ROUNDS: Final = 5
STEP_BAR: Final = 5.0
"""Milliseconds."""


class Play(NamedTuple):
    """An episode: the prompt's place in train, and what was sampled and given."""

    place: int
    transcript: Transcript


def byte_tokenizer(folder: Path) -> FileTokenizer:
    """Write a tokenizer of one token per byte to a folder, and load it."""
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS_NAME])
    tokenizer.save(str(folder / "tokenizer.json"))
    return load(folder / "tokenizer.json", len(vocabulary))


def compared(
    runner: asyncio.Runner,
    folder: Path,
    text: FileTokenizer,
    task: str,
    plays: Sequence[Play],
    bare: Callable[[], Any],
    kind: str = SINGLE_KIND,
) -> tuple[float, list[Sequence[object]]]:
    """Return the ratio of ours to the anchor, and the rows of a table. `bare`: does the anchor's work for all plays.
    `kind`: of the task."""
    order = OpenTask(task=task, version=None, tokenizer=str(folder / "tokenizer.json"), eos=text.eos)
    environment = Environment(order, Limits(), vocabulary=text.size, kind=kind)
    ours = measured_with_children(runner, lambda: scored(environment, plays), len(plays))

    def anchor() -> float:
        bare()
        return len(plays)

    try:
        runner.run(environment.open())
        measured = bench.take_turns({"ours": ours, "bare": bench.timed(anchor)}, ROUNDS)
    finally:
        runner.run(environment.close())
    rows: list[Sequence[object]] = [
        (task.partition(":/")[0], name, max(one.rate for one in results)) for name, results in measured.items()
    ]
    return bench.ratio(measured["ours"], measured["bare"]), rows


def measured_with_children(
    runner: asyncio.Runner, work: Callable[[], Awaitable[None]], amount: int
) -> Callable[[], Measured]:
    """Return a candidate that runs `work` and counts the CPU of this process and of its children."""

    async def run() -> None:
        await work()

    def candidate() -> Measured:
        cpu, wall = bench.cpu_of(os.getpid()), time.perf_counter()
        runner.run(run())
        return Measured(amount, bench.cpu_of(os.getpid()) - cpu, time.perf_counter() - wall)

    return candidate


async def scored(environment: Environment, plays: Sequence[Play]) -> None:
    """Score all plays, a group at a time."""
    for start in range(0, len(plays), GROUP):
        group = plays[start : start + GROUP]
        await asyncio.gather(*(environment.score("train", one.place, one.transcript, LIMIT) for one in group))


def math_claims(runner: asyncio.Runner, folder: Path, quick: bool) -> list[Claim]:
    """Measure `math`: answers of some 300 characters, half of them right."""
    import math_verify

    text = byte_tokenizer(folder)
    problems = _problems(24 if quick else 96)
    (folder / "problems.jsonl").write_text("\n".join(json.dumps(one) for one in problems))
    name = f"math:{folder / 'problems.jsonl'}"
    answers = {one["problem"]: one["answer"] for one in problems}
    task, plays, texts = plugins.find(name), list[Play](), list[tuple[str, str]]()
    chance = random.Random(2)
    for index in range(task.size("train")):
        prompt = text.decode(list(task.episode("train", index, text).prompt))
        right = answers[prompt.partition("\nPut")[0]]
        for _ in range(GROUP):
            said = _solution(right if chance.random() < 0.5 else chance.choice(list(answers.values())), chance)
            tokens = [*text.encode(said), text.eos]
            plays.append(Play(index, Transcript(tokens, [len(tokens)])))
            texts.append((right, said))

    def bare(some: Sequence[tuple[str, str]] = tuple(texts)) -> None:
        references: dict[str, Any] = {}
        for right, said in some:
            if right not in references:
                references[right] = math_verify.parse(f"\\boxed{{{right}}}")
            math_verify.verify(references[right], math_verify.parse(said))

    ratio, rows = compared(runner, folder, text, name, plays, bare)
    cost, more = _comparison(texts[:: 1 if quick else 4], bare)
    bench.table(("task", "answers", "per CPU second"), rows + more)
    return [
        Claim("math", ratio, "bare Math-Verify", BAR),
        Claim("comparison", cost, "bare Math-Verify's CPU", COMPARISON_BAR, at_most=True),
    ]


def _comparison(
    texts: Sequence[tuple[str, str]], bare: Callable[[Sequence[tuple[str, str]]], None]
) -> tuple[float, list[Sequence[object]]]:
    """Return the CPU of `is_equal` by itself as a multiple of the anchor's, and rows of a table."""

    def ours() -> float:
        for right, said in texts:
            equality.is_equal(right, said)
        return len(texts)

    def anchor() -> float:
        bare(texts)
        return len(texts)

    ours()
    measured = bench.take_turns({"ours": bench.timed(ours), "bare": bench.timed(anchor)}, ROUNDS)
    rows = [("comparison", name, max(one.rate for one in results)) for name, results in measured.items()]
    return 1 / bench.ratio(measured["ours"], measured["bare"]), list(rows)


def _problems(count: int) -> list[dict[str, str]]:
    forms = ("{}", "\\frac{{{}}}{{7}}", "{}\\sqrt{{3}}", "x^2+{}", "{}.25", "({},2)")
    return [
        {"problem": f"Problem {number}: which is it?", "answer": forms[number % len(forms)].format(number + 2)}
        for number in range(count)
    ]


def _solution(answer: str, chance: random.Random) -> str:
    steps = " ".join(f"Step {step}: ${chance.randrange(99)}+{chance.randrange(99)}$ is added." for step in range(9))
    return f"{steps} So the answer is $\\boxed{{{answer}}}$."


def poker_claims(runner: asyncio.Runner, folder: Path, quick: bool) -> list[Claim]:
    """Measure each game: hands against the usual opponent, with moves by chance."""
    text, rows, claims = byte_tokenizer(folder), list[Sequence[object]](), list[Claim]()
    for game, hands in {"kuhn": 2_000, "leduc": 2_000, "holdem": 200}.items():
        poker = plugins.find(f"poker:{game}")
        assert isinstance(poker, PokerTask)
        plays, records = list[Play](), list[tuple[Sequence[str], Sequence[str]]]()
        for index in range(hands if quick else 2 * hands):
            play, record = _hand(poker, index, text)
            plays.append(play)
            records.append(record)

        def bare(game: str = game, records: Sequence[tuple[Sequence[str], Sequence[str]]] = tuple(records)) -> None:
            for cards, moves in records:
                bare_hand(game, cards, moves)

        ratio, added = compared(runner, folder, text, poker.name, plays, bare, SERVED_KIND)
        rows += added
        claims.append(Claim(poker.name, ratio, "bare pokerkit", BAR))
    bench.table(("task", "hands", "per CPU second"), rows)
    return claims


def _hand(poker: PokerTask, index: int, text: FileTokenizer) -> tuple[Play, tuple[Sequence[str], Sequence[str]]]:
    """Play a hand; return it, and its cards and the moves of both."""
    chance, episode = random.Random(index), poker.episode("train", index, text)
    tokens, turns = list[int](), list[int]()
    while True:
        situation = episode.situation
        letter = chance.choice([one for one in situation.legal if one != "f"])
        move = f"b{situation.low}" if letter == "b" and situation.sized else letter
        sampled = [*text.encode(move), text.eos]
        given = episode.reply(sampled)
        tokens, turns = [*tokens, *sampled], [*turns, len(sampled)]
        if given is None:
            return Play(index, Transcript(tokens, turns)), (episode.cards, episode.moves)
        tokens, turns = [*tokens, *given], [*turns, len(given)]


@lru_cache
def bare_game(game: str) -> Any:
    """Return pokerkit's game, which does all that is no player's choice but the dealing of known cards."""
    import pokerkit
    from pokerkit import Automation

    dealing = (Automation.CARD_BURNING, Automation.HOLE_DEALING, Automation.BOARD_DEALING)
    automations = tuple(one for one in Automation if one not in dealing)
    if game == "kuhn":
        return pokerkit.KuhnPoker(automations)
    if game == "leduc":
        return pokerkit.LeducHoldem(automations)
    return pokerkit.NoLimitTexasHoldem(automations, True, 0, (1, 2), 2)


def bare_hand(game: str, cards: Sequence[str], moves: Sequence[str]) -> tuple[int, ...]:
    """Play a hand by pokerkit alone, and return the chips of its two players, in pokerkit's order."""
    rules, remaining = RULES[game], iter(moves)
    state = bare_game(game)((rules.most,) * 2, 2)
    owns = ["".join(cards[seat * rules.own : (seat + 1) * rules.own]) for seat in range(2)]
    for own in owns if rules.small else owns[::-1]:
        state.deal_hole(own)
    dealt, streets = 2 * rules.own, iter(rules.board)
    while state.status:
        if state.actor_index is None:
            count = next(streets)
            if state.can_burn_card("??"):
                state.burn_card("??")
            state.deal_board("".join(cards[dealt : dealt + count]))
            dealt += count
            continue
        move = next(remaining)
        if move == "f":
            state.fold()
        elif move == "c":
            state.check_or_call()
        else:
            state.complete_bet_or_raise_to(int(move[1:]) if move[1:] else None)
    return tuple(map(int, state.payoffs))


def step_claims(runner: asyncio.Runner, folder: Path, quick: bool) -> list[Claim]:
    """Measure the CPU of a `step` round trip."""
    spent = _step_seconds(runner, folder / "step", 400 if quick else 1_600)
    return [Claim("step", 1_000 * spent / STEP_BAR, f"{STEP_BAR:g} ms of CPU at both ends", 1.0, at_most=True)]


def _step_seconds(runner: asyncio.Runner, folder: Path, episodes: int) -> float:
    """Return the CPU seconds of a round trip."""
    folder.mkdir()
    cpu, sampled_turns, late = runner.run(round_trips(folder, episodes))
    print(f"step: {1_000 * cpu / sampled_turns:.2f} ms of CPU; {late} of {sampled_turns} answers by a second request")
    return cpu / sampled_turns


def turns_claims(runner: asyncio.Runner, folder: Path, quick: bool) -> list[Claim]:
    """Measure the node's CPU for episodes of several turns."""
    from benchmarks.turns_cost import costs

    folder = folder / "turns"
    folder.mkdir()
    step = _step_seconds(runner, folder / "step", 400)
    served, whole, per_step = costs(runner, folder, 32 if quick else 64, 2 if quick else 5)
    with_network = [one._replace(cpu=one.cpu + step * one.work / per_step) for one in served]
    rows = [(name, max(one.rate for one in some)) for name, some in (("served", with_network), ("one turn", whole))]
    bench.table(("four turns or one", "tokens per CPU second"), rows)
    return [Claim("turns", 1 / bench.ratio(with_network, whole), "the same tokens in one turn", 1.1, at_most=True)]


PARTS: Final = {"math": math_claims, "poker": poker_claims, "step": step_claims, "turns": turns_claims}


PACKAGES: Final = {"math": "math-verify", "poker": "pokerkit", "turns": "torch"}


def _packages(parts: Sequence[str]) -> list[str]:
    return [PACKAGES[part] for part in parts if part in PACKAGES]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer answers and hands per round")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    order = parser.parse_args()
    try:
        bench.header("tasks through their environment's process", _packages(order.only))
    except PackageNotFoundError as error:
        parser.error(f"{error}: install the extras math and poker, or choose parts with --only")
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        for part in order.only:
            claims += PARTS[part](runner, Path(name), order.quick)
    return bench.close(claims)


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
