"""Measure several scorers of one coordinator, and what the host does for a token: `python -m benchmarks.scorers
[--quick] [--ray]`.

1. `rates`: a whole coordinator without a network (benchmarks/load/bare.py) gets the same groups with one scorer, two,
   four, and two of which one takes twice as long. The scorers are processes of their own that sleep for a given time
   per token (benchmarks/scorers/slow_scorer.py), started as `scorer.devices` starts them. The rate is of accepted
   tokens, by the clock, from the first submission to the last verdict. Bars: two have 1.8 times the rate of one, four
   3.4 times, and the unequal two 1.35 times of their 1.5.
   With `--ray` the scorers are actors of Ray, each on a raylet of its own with a GPU in name, and fetch the version
   over HTTPS (benchmarks/scorers/ray_hosts.py); the bars are the same. It needs the extra ray.
2. `host`: the CPU time of a token in the scorer's process beside the pass (benchmarks/scorers/host_cost.py). Bar: 8
   microseconds.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.harness import bench
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode
from benchmarks.scorers.host_cost import host_cost
from benchmarks.scorers.ray_hosts import ray_hosts
from benchmarks.scorers.slow_scorer import VARIABLE
from echo2.coordinator.command_line.serving import scorers_of, scorers_of_run
from echo2.coordinator.settings.computing import Computing
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.runtime import stand_ins

NODES: Final = 16
GROUP, TOKENS, PROMPT = 4, 40, 6
GROUP_SECONDS: Final = 0.1
"""Seconds of a group at a scorer."""
TIMES: Final = {
    "one": (1.0,), "two": (1.0, 1.0), "four": (1.0, 1.0, 1.0, 1.0), "two, one of them at half the rate": (1.0, 2.0),
}  # fmt: skip
BARS: Final = {"two": 1.8, "four": 3.4, "two, one of them at half the rate": 1.35}
MICROSECONDS: Final = 8.0


def rates(groups: int) -> list[bench.Claim]:
    """Measure accepted tokens per second by scorers, print the table, and return the claims."""
    measured = {name: asyncio.run(_rate(times, groups)) for name, times in TIMES.items()}
    return _claims(measured)


def rates_by_ray(groups: int) -> list[bench.Claim]:
    """Do the same with scorers of Ray."""
    measured = {}
    for name, times in TIMES.items():
        if len(set(times)) > 1:
            continue  # all hosts of a cluster here have one environment, and so one time
        with tempfile.TemporaryDirectory(prefix="echo2-ray-") as folder, ray_hosts(Path(folder), stand_in(1.0)) as at:
            for _ in times:
                at.add(num_cpus=1, num_gpus=1)
            measured[name] = asyncio.run(_rate(times, groups, at.address))
    return _claims(measured)


def _claims(measured: dict[str, float]) -> list[bench.Claim]:
    bench.table(
        ("scorers", "accepted tokens/s", "times one"),
        [(name, rate, rate / measured["one"]) for name, rate in measured.items()],
    )
    return [
        bench.Claim(f"{name} scorers", measured[name] / measured["one"], "one", bar) for name, bar in BARS.items()
        if name in measured
    ]  # fmt: skip


def stand_in(times: float) -> dict[str, str]:
    """Return the variables of a scorer's process that takes `times` x `GROUP_SECONDS` for a group."""
    token_seconds = times * GROUP_SECONDS / (PROMPT + GROUP * TOKENS)
    return {stand_ins.VARIABLE: "scorer=benchmarks.scorers.slow_scorer", VARIABLE: str(token_seconds)}


async def _rate(times: Sequence[float], groups: int, ray: str = "") -> float:
    """Return the rate of scorers. `times`: time of a group at each, in `GROUP_SECONDS`. `ray`: address of the cluster
    that has them."""
    sections: dict[str, dict[str, Any]] = {
        "run": {"group_size": GROUP, "limit": TOKENS, "batch_groups": groups, "staleness": 8},
        "leases": {"minimum_seconds": 600.0, "per_node": groups, "canaries": 0.0, "audits": 0.0},
    }
    if ray:
        sections["https"] = {"listen": ["/ip4/127.0.0.1/tcp/0"]}
        sections["scorer"] = {"ray": ray, "devices": ("cuda",) * len(times)}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="echo2-scorers-")))
        # In a thread: it starts an event loop of its own where Ray is asked.
        run = await asyncio.to_thread(make_run, folder / "run", now=time.time_ns() // 1_000_000, **sections)
        if ray:
            cluster, scorers = scorers_of_run(run, Computing("cpu", 1, ""), _tell)
            assert cluster is not None
            stack.push_async_callback(cluster.stop)
        else:
            scorers = [_scorer(one) for one in times]
        for scorer in scorers:
            stack.push_async_callback(scorer.stop)
        coordinator = await stack.enter_async_context(bare(run, scorers=scorers))
        return await _measured(coordinator, groups)


def _scorer(times: float) -> SupervisedEngine:
    os.environ |= stand_in(times)
    computing = Computing("cpu", 1, "", ("cpu",))
    return scorers_of(computing, _tell, 600.0, stand_in(times))[0]


def _tell(fault: str) -> None:
    print(fault, file=sys.stderr)


async def _measured(at: Bare, groups: int) -> float:
    latest, scoring = at.coordinator.publisher.latest, at.coordinator.learning.scoring
    assert latest is not None
    await until(lambda: latest.version in at.coordinator.history.evaluations)  # the first scorer has its version
    for visits in scoring.further:
        assert await visits.hold(latest.version, latest.root)
    nodes = [LightNode(at.terms(TOKENS)) for _ in range(NODES)]
    for node in nodes:
        await at.ask("hello", node.hello())
    submissions = list[bytes]()
    for number in range(groups):
        node = nodes[number % NODES]
        answer = opened(await at.ask("lease", node.ask()))
        assert isinstance(answer, bytes), answer
        submissions.append(node.submit(lease_of(answer)))
    began = time.perf_counter()
    for data in submissions:
        await at.ask("submit", data)
    await until(lambda: at.database.value("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'") == groups)
    return groups * GROUP * TOKENS / (time.perf_counter() - began)


def host(tokens: int) -> list[bench.Claim]:
    """Measure the host's part, print the table, and return the claim."""
    parts = host_cost(tokens)
    bench.table(("part", "CPU us per token"), [*parts.items(), ("together", sum(parts.values()))])
    return [bench.Claim("host's part", sum(parts.values()), "us of CPU per token", MICROSECONDS, at_most=True)]


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scorers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the groups")
    parser.add_argument("--ray", action="store_true", help="the rates alone, of scorers of Ray")
    parser.add_argument("--only", choices=["rates", "host"], help="one part alone")
    order = parser.parse_args()
    bench.one_thread()
    bench.header("several scorers", ["torch"])
    parts: dict[str, Callable[[], list[bench.Claim]]] = {
        "rates": lambda: rates(24 if order.quick else 96),
        "host": lambda: host(500 if order.quick else 2000),
    }
    if order.ray:
        return bench.close(rates_by_ray(24 if order.quick else 96))
    return bench.close_each(part() for name, part in parts.items() if order.only in (None, name))


if __name__ == "__main__":
    sys.exit(main())
