"""Measure episodes of a taskset of verifiers through the bridge, against the same taskset on a local server.

Both ways have one engine process (transformers, float32, a model of SmolLM2-135M's depth and width, random weights),
the taskset's own environment server, and as many episodes at a time. Through the bridge a group's turns are stored and
sealed as a node does it and answered by the environment's process; the CPU of a turn's way over the network, `--step`
as `python -m benchmarks.tasks --only step` prints it, is added per turn. The anchor is verifiers with a server of the
same engine in this process. CPU is that of this process and all below it. Rewards are compared on the tokens that the
bridge's episodes had.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured
from benchmarks.turns_cost import make_model
from coordinator.environments.environment import Environment, HostedEpisode
from coordinator.environments.limits import Limits
from coordinator.environments.messages import OpenTask
from engines.engine import Job, SampledTurn
from engines.process import EngineProcess
from node.rollouts.turn_store import TurnStore
from p2p.envelope import seal
from p2p.identity import generate_key
from p2p.wire_types import encode
from protocol.steps import StepRequest
from protocol.task_kinds import SERVED
from tasks import tokenizer
from tasks.verifiers.other_side import SCRIPTS
from tasks.verifiers.taskset_file import USUAL_PYTHON
from tasks.verifiers.verifiers_task import written

ENDS: Final = (tokenizer.EOS, *range(50, tokenizer.CHAR_SIZE))
"""So many that a turn of the random model ends after four tokens on average."""
LIMIT: Final = 32
GROUP: Final = 8
TASKSETS: Final = Path(__file__).resolve().parents[2] / "tasks/verifiers/tasksets"
BAR: Final = 1.3


class Bridge:
    """Episodes through the bridge. `episodes`: name -> (row, its sampled turns, its reward)."""

    def __init__(self, engine: EngineProcess, environment: Environment, folder: Path) -> None:
        self._engine, self._environment = engine, environment
        self._store, self._key = TurnStore(folder / "turns.sqlite"), generate_key()
        self.steps, self.tokens = 0, 0
        self.episodes: dict[str, tuple[int, list[list[int]], float]] = {}

    async def play(self, index: int, name: str) -> None:
        """Play a group."""
        prompt = await self._environment.prompt("train", index)
        episodes: dict[int, HostedEpisode] = {}
        sampled: defaultdict[int, list[list[int]]] = defaultdict(list)

        async def answered(one: SampledTurn) -> Sequence[int] | None:
            self.steps += 1
            self.tokens += len(one.tokens)
            self._store.put_turn(one)
            step = StepRequest(lease=one.served, sample=one.sample, turn_number=one.turn_number, tokens=one.tokens)
            seal("request", bytes(32), encode(step), self._key)
            if one.sample not in episodes:
                episodes[one.sample] = self._environment.episode("train", index)
            turns = sampled[one.sample]
            turns.append(list(one.tokens))
            last = sum(map(len, turns)) == LIMIT
            answer = await episodes[one.sample].reply(one.tokens, last=last)
            self._store.put_answer(one, answer.given)
            if answer.score is not None:
                self.episodes[f"{name}-{one.sample}"] = index, turns, answer.score.reward
                episodes[one.sample].leave()
            return answer.given

        seeds = [f"{name}-{sample}".encode().ljust(16, b"-")[:16] for sample in range(GROUP)]
        job = Job(
            prompt=prompt, seeds=seeds, limit=LIMIT, eos=ENDS[0], other_ends=ENDS[1:], task="x", task_version=1,
            split="train", index=index, served=name.encode(),
        )  # fmt: skip
        await self._engine.generate_served(job, answered)


class LocalServer:
    """An inference server of the same engine. `written`: name -> turns that it answers instead of the engine's."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self.written: dict[str, list[list[int]]] = {}
        self.tokens, self._count = 0, 0

    async def start(self) -> tuple[web.AppRunner, str]:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes([web.get("/v1/models", self._models), web.post("/inference/v1/generate", self._generate)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy"}]})

    async def _generate(self, request: web.Request) -> web.Response:
        name, body = request.headers["X-Episode"], await request.json()
        if name in self.written:
            tokens = self.written[name].pop(0)
            logprobs = [0.0] * len(tokens)
        else:
            self._count += 1
            job = Job(
                prompt=body["token_ids"], seeds=[self._count.to_bytes(16, "big")], limit=LIMIT, eos=ENDS[0],
                other_ends=ENDS[1:], task="x", task_version=1, split="train", index=0, single_turn=True,
            )  # fmt: skip
            (sample,) = await self._engine.generate(job)
            tokens, logprobs = [int(one) for one in sample.tokens], [float(one) for one in sample.logprobs]
            self.tokens += len(tokens)
        entries = [
            {"token": f"token_id:{token}", "logprob": value} for token, value in zip(tokens, logprobs, strict=True)
        ]
        finish = "stop" if tokens[-1] in ENDS else "length"
        choice = {"index": 0, "token_ids": tokens, "finish_reason": finish, "logprobs": {"content": entries}}
        return web.json_response({"request_id": name, "choices": [choice]})


async def measure(folder: Path, taskset: str, groups: int, rounds: int, step: float) -> tuple[Claim, Claim]:
    """Play one taskset both ways."""
    text = tokenizer.load(folder / "model/tokenizer.json", *ENDS)
    env = {"taskset": {"id": taskset}}
    (folder / f"{taskset}.toml").write_text(f'path = ["{TASKSETS}"]\nseconds = 60.0\n[env]\ntaskset.id = "{taskset}"\n')
    order = OpenTask(
        task=f"verifiers:{folder / taskset}.toml", version=None, tokenizer=str(folder / "model/tokenizer.json"),
        eos=ENDS[0], other_ends=ENDS[1:],
    )  # fmt: skip
    environment = Environment(order, Limits(loopback=True, seconds=90.0), vocabulary=text.size, kind=SERVED)
    async with EngineProcess() as engine:
        await engine.probe("cpu", "float32", engine="transformers")
        await engine.load(folder / "model", folder / "model/v0.safetensors")
        await environment.open()
        (folder / taskset).mkdir()
        bridge = Bridge(engine, environment, folder / taskset)
        local = LocalServer(engine)
        runner, url = await local.start()
        settings = {
            "env": env, "path": [str(TASKSETS), str(SCRIPTS)], "url": url,
            **written(text, Path(tempfile.mkdtemp(dir=folder)), None),
        }  # fmt: skip
        script = str(Path(__file__).with_name("local_rollouts.py"))
        surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = await asyncio.create_subprocess_exec(
            str(USUAL_PYTHON), script, json.dumps(settings), stdin=-1, stdout=-1, env=surroundings
        )
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdout.readline()

        async def roll_out(episodes: list[tuple[str, int]]) -> dict[str, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"episodes": episodes}).encode() + b"\n")
            rewards: dict[str, float] = json.loads(await process.stdout.readline())
            return rewards

        through, alone = list[Measured](), list[Measured]()
        try:
            for number in range(rounds + 1):  # the first one warms both up
                before, steps = bench.cpu_of(os.getpid()), bridge.steps
                rows = range(number * groups, (number + 1) * groups)
                await asyncio.gather(*(bridge.play(index, f"{number}-{index}") for index in rows))
                spent = bench.cpu_of(os.getpid()) - before + step * (bridge.steps - steps)
                between, calls = bench.cpu_of(os.getpid()), local.tokens
                await roll_out([(f"x{number}-{index}-{sample}", index) for index in rows for sample in range(GROUP)])
                if number:
                    through.append(Measured(groups * GROUP, spent, 0.0))
                    alone.append(Measured(groups * GROUP, bench.cpu_of(os.getpid()) - between, 0.0))
                    print(f"{taskset}: {local.tokens - calls} tokens on the local server", file=sys.stderr)
            # The server's rows are numbered by split, the anchor's by the taskset: names tell which prompt each had.
            local.written = {name: [list(turn) for turn in turns] for name, (_, turns, _) in bridge.episodes.items()}
            places = await _places(environment, text, bridge)
            rewards = await roll_out([(name, places[index]) for name, (index, _, _) in bridge.episodes.items()])
        finally:
            process.stdin.close()
            await process.wait()
            await runner.cleanup()
            await environment.close()
    same = sum(rewards[name] == reward for name, (_, _, reward) in bridge.episodes.items())
    bench.table(
        (taskset, "episodes per CPU second", "sampled tokens"),
        [
            ("bridge", max(one.rate for one in through), bridge.tokens),
            ("local", max(one.rate for one in alone), local.tokens),
        ],
    )
    return (
        Claim(f"bridge:{taskset}", 1 / bench.ratio(through, alone), "verifiers on a local server", BAR, at_most=True),
        Claim(f"rewards:{taskset}", same / len(bridge.episodes), "those on the same tokens there", 1.0),
    )


async def _places(environment: Environment, text: tokenizer.FileTokenizer, bridge: Bridge) -> dict[int, int]:
    """Return where each row of the train split stands in the taskset, by its prompt."""
    import random

    chance = random.Random(0)  # as tasks/verifiers/tasksets/reverse_digits.py
    reverse = ["".join(chance.choice("0123456789") for _ in range(4)) for _ in range(1_000)]
    places = {f"{digits}>": place for place, digits in reversed(list(enumerate(reverse)))}
    places |= {f"guess {number}>": number for number in range(1_000)}
    indices = {index for index, _, _ in bridge.episodes.values()}
    return {index: places[text.decode(await environment.prompt("train", index))] for index in indices}


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bridge", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer groups and rounds")
    parser.add_argument("--step", type=float, default=6.4, help="ms of CPU of a turn's round trip")
    order = parser.parse_args()
    if not USUAL_PYTHON.exists():
        print("there is no Python with verifiers: make verifiers")
        return 1
    bench.header("tasksets of verifiers through the bridge", ["torch", "aiohttp"])
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        make_model(Path(name) / "model", tokenizer.CHAR_SIZE, tokenizer.char_tokenizer())
        for taskset in ("reverse-digits", "guess-digit"):
            groups, rounds = (2, 1) if order.quick else (8, 3)
            claims += runner.run(measure(Path(name), taskset, groups, rounds, order.step / 1_000))
    return bench.close(claims)


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
