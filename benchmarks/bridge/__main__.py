"""Measure episodes of a taskset of verifiers through a volunteer, against the same taskset on a local server.

Through a volunteer: a coordinator, verifiers' server in its environment's process, and `echo2-node join` with its
engine, all real, over libp2p on loopback (benchmarks/bridge/through_volunteer.py). The anchor is verifiers with an
inference server of the same engine (local_server.py). Both have as many episodes at a time, and are measured in
mid-work: from one episode's end to a later one's. CPU is that of all processes; learner and scorer are left out on
both sides. Rewards are compared on the tokens that the volunteer's episodes had.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from benchmarks.bridge.local_server import EngineServer, rolling_out
from benchmarks.bridge.through_volunteer import Played, volunteering
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured
from benchmarks.turns_cost import make_model
from echo2.engines.process.process import EngineProcess
from echo2.tasks import tokenizer
from echo2.tasks.verifiers.other_side import SCRIPTS
from echo2.tasks.verifiers.taskset_file import usual_python
from echo2.tasks.verifiers.verifiers_task import write_tokenizer

ENDS: Final = (tokenizer.EOS, *range(50, tokenizer.CHAR_SIZE))
"""So many that a turn of the random model ends after four tokens on average."""
LIMIT: Final = 32
GROUP: Final = 8
ROWS: Final = 1_000
"""Of each taskset."""
TASKSETS: Final = Path(__file__).resolve().parent / "tasksets"
BAR: Final = 1.3


async def measure(folder: Path, taskset: str, groups: int, rounds: int) -> tuple[Claim, Claim]:
    """Play one taskset both ways: a first round that is not counted, then `rounds` of `groups` groups."""
    toml = folder / f"{taskset}.toml"
    toml.write_text(f'path = ["{TASKSETS}"]\nseconds = 60.0\n[env]\ntaskset.id = "{taskset}"\n')
    model, place = folder / "model", folder / taskset
    place.mkdir()
    async with volunteering(
        model, place, task=f"verifiers:{toml}", group=GROUP, limit=LIMIT, at_once=groups
    ) as volunteer:
        through = [await volunteer.measure(groups, GROUP) for _ in range(rounds + 1)][1:]
        played = volunteer.played()
    print(f"{taskset}: {len(played)} episodes through the volunteer", file=sys.stderr)
    text = tokenizer.load(model / "tokenizer.json", *ENDS)
    named = {f"episode-{number}": one for number, one in enumerate(played)}
    rows = _places(taskset, text, played)
    order = [(f"own-{number}", row) for number, row in enumerate(islice(cycle(rows), (rounds + 2) * groups * GROUP))]
    async with EngineProcess() as engine:
        await engine.probe("cpu", "float32", engine="transformers")
        await engine.load(model, model / "v0.safetensors")
        server = EngineServer(engine, ENDS, LIMIT)
        async with server.serving() as url:
            settings = {
                "env": {"taskset": {"id": taskset}}, "path": [str(TASKSETS), str(SCRIPTS)], "url": url,
                "at_once": groups * GROUP, **write_tokenizer(text, Path(tempfile.mkdtemp(dir=folder)), None),
            }  # fmt: skip
            async with rolling_out(settings) as local:
                local.order(order)
                alone = [await local.measure(groups * GROUP) for _ in range(rounds + 1)][1:]
                await local.measure(groups * GROUP)
                own = server.tokens
                server.written = {name: [list(turn) for turn in one.turns] for name, one in named.items()}
                rewards = await local.rewards(list(zip(named, rows, strict=True)))
    same = sum(rewards[name] == one.reward for name, one in named.items())
    sampled = sum(len(turn) for one in played for turn in one.turns)
    bench.table(
        (taskset, "episodes per CPU second", "episodes per second", "sampled tokens per episode"),
        [
            ("volunteer", _best(through), _quickest(through), sampled / len(played)),
            ("local", _best(alone), _quickest(alone), own / len(order)),
        ],
    )
    return (
        Claim(f"bridge:{taskset}", 1 / bench.ratio(through, alone), "verifiers on a local server", BAR, at_most=True),
        Claim(f"rewards:{taskset}", same / len(played), "those on the same tokens there", 1.0),
    )


def _best(measured: Sequence[Measured]) -> float:
    return max(one.rate for one in measured)


def _quickest(measured: Sequence[Measured]) -> float:
    return max(one.work / one.wall for one in measured)


def _places(taskset: str, text: tokenizer.FileTokenizer, played: Sequence[Played]) -> list[int]:
    """Return the row of each episode in the taskset, by its prompt; a server's rows are numbered by split."""
    import random

    if taskset == "guess-digit":
        places = {f"guess {number}>": number for number in range(ROWS)}
    else:
        chance = random.Random(0)  # as tasksets/reverse_digits.py
        digits = ["".join(chance.choice("0123456789") for _ in range(4)) for _ in range(ROWS)]
        places = {f"{row}>": number for number, row in reversed(list(enumerate(digits)))}
    return [places[text.decode(one.prompt)] for one in played]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bridge", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer groups and rounds")
    order = parser.parse_args()
    if not usual_python().exists():
        print("there is no Python with verifiers: make verifiers")
        return 1
    bench.header("tasksets of verifiers through a volunteer", ["torch", "aiohttp"])
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        model = Path(name) / "model"
        make_model(model, tokenizer.CHAR_SIZE, tokenizer.char_tokenizer())
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
        for taskset in ("reverse-digits", "guess-digit"):
            groups, rounds = (4, 1) if order.quick else (8, 5)
            claims += runner.run(measure(Path(name), taskset, groups, rounds))
    return bench.close(claims)


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
