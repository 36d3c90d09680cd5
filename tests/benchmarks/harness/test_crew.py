"""A benchmark whose process has ended ends at once, and says what that process said last."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.harness.crew import Crew
from echo2.coordinator.demo.processes import ProcessFault


def test_a_process_that_ended_is_a_fault_with_its_last_lines(tmp_path: Path) -> None:
    crew = Crew(tmp_path, os.environ)
    crew.start("coordinator", [sys.executable, "-c", "import sys; sys.exit('no such setting')"])
    crew.wait(["coordinator"], 60.0)
    with pytest.raises(ProcessFault, match="coordinator ended with exit code 1\ncoordinator: no such setting"):
        crew.check()
    fault = crew.fault("the run was not finished", "coordinator")
    assert str(fault).splitlines() == ["the run was not finished", "coordinator: no such setting"]
    crew.stop()
