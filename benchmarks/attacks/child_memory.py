"""An environment's code reaches for the memory of the coordinator, its scorer, its learner and another environment.

Rules
1. All run as one user without capabilities, as `python -m benchmarks.attacks.child_memory`: root would see everything.
   Root starts them as another user of a namespace, to whom root's files belong.
2. The coordinator is this process, its children are the product's own, and the reaching code has each kind of limits.
   A process of that user without any limit reaches for the same.
3. A victim that is not private is among them: where nothing reaches even that, the system forbids tracing to all, and
   the row shows nothing of ours.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from benchmarks.attacks import reaching_task
from benchmarks.attacks.attack import AttackFinding
from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.coordinator.learner.ranks.launch import learner_process
from echo2.engines.process.process import EngineProcess
from echo2.runtime.child import Child, ChildError
from echo2.runtime.own_memory import keep_private
from echo2.runtime.python_command import code_command, module_command
from echo2.tasks.task import Transcript
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer

OPEN: Final = "a process that is not private"
ATTACKERS: Final[dict[str, Limits]] = {
    "an environment": Limits(),
    "one that starts processes": Limits(subprocesses=True),
    "one that speaks with its processes": Limits(loopback=True),
}
UNLIMITED: Final = "a process without limits"
_AS_A_USER: Final = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
_SECONDS: Final = 120.0

Reached = dict[str, dict[str, int]]
"""Attacker -> victim -> number of ways that led to it."""


async def reach() -> Reached:
    """Start victims and attackers; return what was reached (rules 2 and 3)."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer = char_tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        order = OpenTask(task=reaching_task.NAME, version=1, tokenizer=str(folder / "tokenizer.json"), eos=EOS)
        make = partial(EnvironmentProcess, module="benchmarks.attacks.reaching_task")
        environments = {
            name: Environment(order, limits, vocabulary=CHAR_SIZE, make=make) for name, limits in ATTACKERS.items()
        }
        for one in environments.values():
            stack.push_async_callback(one.close)
            await one.open()
        other = make(Limits(files=(order.tokenizer,)))
        stack.push_async_callback(other.end)
        await other.open(order)
        innermost = psutil.Process(other.pid).children(recursive=True)
        victims = {"coordinator": os.getpid(), "another environment": innermost[-1].pid if innermost else other.pid}
        for name, child in _children().items():
            await child.start()
            stack.push_async_callback(child.stop)
            victims[name] = child.pid
            await _wait_for_its_code(child)
        outcome: Reached = {UNLIMITED: {name: await _reach_without_limits(pid) for name, pid in victims.items()}}
        for attacker, one in environments.items():
            scores = {name: await one.score("train", 0, _number(pid), 16) for name, pid in victims.items()}
            outcome[attacker] = {name: int(score.reward) for name, score in scores.items()}
        return outcome


def _children() -> dict[str, Child]:
    answering = "from echo2.runtime.child_pipe import Pipe; Pipe().serve({})"
    return {
        "scorer": EngineProcess(name="scorer"),
        "learner": learner_process(),
        OPEN: Child(code_command(answering), name="open"),
    }


async def _wait_for_its_code(child: Child) -> None:
    """Wait until a child runs code of ours: it answers even a call that it does not know."""
    with contextlib.suppress(ChildError):
        await child.call("anything", None, dict, timeout=_SECONDS)


async def _reach_without_limits(pid: int) -> int:
    code = "import sys; from benchmarks.attacks.reaching_task import reach_all; print(len(reach_all(int(sys.argv[1]))))"
    process = await asyncio.create_subprocess_exec(*code_command(code, str(pid)), stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    return int(out)


def _number(pid: int) -> Transcript:
    tokens = [*char_tokenizer().encode(str(pid)).ids, EOS]
    return Transcript(tokens, [len(tokens)])


def finding(quick: bool) -> AttackFinding:
    """Try it in a process of its own (rule 1)."""
    del quick  # it takes a few seconds
    command = [*(_AS_A_USER if os.geteuid() == 0 else ()), *module_command(__spec__.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        return AttackFinding(tried=0, note=" ".join(done.stderr.splitlines()[-1:]))
    return judge(json.loads(done.stdout))


def judge(outcome: Reached) -> AttackFinding:
    """Tell what was reached that should not be."""
    ways = len(reaching_task.REACHES)
    taken = [
        f"{attacker} reaches {victim} in {number} of {ways} ways"
        for attacker, victims in outcome.items()
        for victim, number in victims.items()
        if number and not (attacker == UNLIMITED and victim == OPEN)
    ]
    tried = sum(map(len, outcome.values())) * ways
    shown = "" if outcome[UNLIMITED][OPEN] else "this system lets no process trace another: nothing is shown of ours"
    return AttackFinding(tried=tried, prevented=not taken, note="; ".join(filter(None, (*taken, shown))))


def main() -> None:
    """Print what was reached, as JSON."""
    keep_private()
    print(json.dumps(asyncio.run(reach())))


if __name__ == "__main__":
    main()
