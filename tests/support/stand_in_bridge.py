"""An environment's process with a task of verifiers over a stand-in server, in the place of
coordinator.environments.environment_host."""

import sys
from pathlib import Path

from echo2.coordinator.environments import environment_host
from echo2.tasks import registry
from echo2.tasks.verifiers.other_side import OtherSide
from echo2.tasks.verifiers.verifiers_task import VerifiersTask


def started() -> OtherSide:
    """Return the server, started, and open."""
    server = OtherSide([sys.executable, str(Path(__file__).with_name("bridge_stand_in_server.py"))])
    server.wait_until_open()
    return server


if __name__ == "__main__":
    registry.register(VerifiersTask("bridged", 1, {"train": 10, "heldout": 10}, started(), seconds=0.5))
    environment_host.main()
