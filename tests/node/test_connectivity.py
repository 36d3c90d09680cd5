"""The node's connections: the content of a greeting, and the number format that the run demands."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.engines.engine import DTYPES
from echo2.node.errors import RefusedByRun
from echo2.p2p.discovery.peer_records import decode_own
from echo2.p2p.wire_types import decode
from echo2.protocol.requests import Hello, Refusal
from echo2.tasks.registry import list_tasks
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, make_node, until
from tests.support.swarm import working


class Greeted(FakeCoordinator):
    """A coordinator that records the greetings, and refuses the engine `refusals_left` times."""

    refusals_left = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.greetings: list[Hello] = []

    def hello(self, node: bytes, body: bytes) -> bytes | Refusal:
        self.greetings.append(decode(body, Hello))
        if self.refusals_left:
            self.refusals_left -= 1
            return Refusal(code="engine", sentence="This engine is not admitted.")
        return super().hello(node, body)


@pytest.mark.parametrize(("show", "device"), [(False, "cpu"), (True, "a table")])
def test_a_greeting_describes_engine_tasks_and_addresses_and_the_hardware_by_the_owners_choice(
    show: bool, device: str, tmp_path: Path
) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greeted(tmp_path / "coordinator")
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite(), name="fox", show_hardware=show)
            async with working(node):
                await until(lambda: node.coordinator_client.peer)
            (greeting,) = coordinator.greetings
            assert (greeting.name, greeting.engine, greeting.device) == ("fox", "bigram/float32/cpu", device)
            assert [(task.name, task.version) for task in greeting.tasks] == list(list_tasks())
            record = decode_own(greeting.record)
            assert record.peer == node.peer_id
            assert record.addresses

    run_fake(main)


@pytest.mark.parametrize(("refused", "dtype"), [(1, "float16"), (2, "bfloat16")])
def test_a_run_that_refuses_the_guessed_number_format_gets_the_others_once(
    refused: int, dtype: str, tmp_path: Path
) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greeted(tmp_path / "coordinator")
        coordinator.refusals_left = refused
        coordinator.runspec = coordinator.sealed_runspec(compute_dtype=dtype)
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.coordinator_client.peer)
                starts = [line for line in node.engine.log if line.startswith("start")]
                assert starts == ["start float32", "start float16", "start bfloat16"][: refused + 1]

    run_fake(main)


def test_a_run_that_refuses_all_number_formats_ends_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greeted(tmp_path / "coordinator")
        coordinator.refusals_left = len(DTYPES)
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            with pytest.raises(RefusedByRun, match="not admitted"):
                await node.daemon.run()
            assert len(coordinator.greetings) == len(DTYPES)

    run_fake(main)


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"sampling": "dice/7"}, "chooses tokens by the rule dice/7, which this build has not: update echo2"),
        ({"sampling": "gumbel-splitmix64/2"}, "contradicts itself: rule gumbel-splitmix64/2, temperature 1.0"),
        (
            {"sampling": "gumbel-splitmix64/1", "temperature": 800},
            "contradicts itself: rule gumbel-splitmix64/1, temperature 0.8",
        ),
    ],
)
def test_a_run_whose_rule_of_sampling_the_engine_has_not_ends_the_node(
    terms: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greeted(tmp_path / "coordinator")
        coordinator.runspec = coordinator.sealed_runspec(**terms)
        async with coordinator.serving(network):
            engine = InProcessEngine(gpu="transformers/float32/cpu")
            node = make_node(network, tmp_path / "node", coordinator.invite(), engine=engine)
            with pytest.raises(RefusedByRun, match=sentence):
                await node.daemon.run()

    run_fake(main)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_node_greets_again_after_it_took_the_runs_number_format(dtype: str, tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greeted(tmp_path / "coordinator")
        coordinator.runspec = coordinator.sealed_runspec(compute_dtype=dtype)
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: len(coordinator.greetings) == 2)
                assert node.daemon.engine.dtype == dtype
                await until(lambda: node.coordinator_client.peer)

    run_fake(main)
