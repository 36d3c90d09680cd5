"""`echo2-coord status`: the lines, and states of other versions."""

import msgspec

from coordinator.metrics.views import TroubleView
from coordinator.web import status
from tests.support import pictures


def test_the_state_of_an_older_coordinator_decodes() -> None:
    old = msgspec.json.decode(msgspec.json.encode(pictures.BUSY))
    del old["trouble"], old["unscored"]
    assert status.decode(msgspec.json.encode(old)).trouble == TroubleView()


def test_status_leaves_out_unknown_values_of_a_starting_coordinator() -> None:
    starting = msgspec.structs.replace(pictures.BUSY, phase="starting", parameters=0, step=0, era=0)
    run, phase, *_ = status.lines(starting)
    assert ("parameters" in run, phase) == (False, "phase    starting")
