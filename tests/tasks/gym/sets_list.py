"""Make sets.json, the list of reasoning-gym's sets that pass: `python -m tests.tasks.gym.sets_list [NAME ...]`.

A set passes if it passes the kit (tasks/check.py). Without names all sets of the installed version are tried, which
takes hours on one core; with names those alone, and the others keep their rows. The list is written after each set.
"""

import argparse
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from echo2.tasks.check import Extent, check
from echo2.tasks.gym.gym_task import LIBRARY, SETS, GymTask
from echo2.tasks.plugins import GROUP
from tests.support.paths import ROOT

FAMILY: Final = "gym-unlisted"


def unlisted_task(name: str) -> GymTask:
    """Return the task of one set, on the list or not."""
    import reasoning_gym

    def make(one: str, seed: int) -> Any:
        return reasoning_gym.create_dataset(one, seed=seed, size=1)

    return GymTask(f"{FAMILY}:{name}", {name: 1}, make)


@contextmanager
def _sets_opened() -> Iterator[None]:
    """Let processes that this one starts open sets that are not on the list, by an entry point."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        information = Path(folder) / "echo2_sets-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: echo2-sets\nVersion: 1.0\n")
        maker = "tests.tasks.gym.sets_list:unlisted_task"
        (information / "entry_points.txt").write_text(f"[{GROUP}]\n{FAMILY} = {maker}\n")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, str(ROOT), before]))
        try:
            yield
        finally:
            os.environ.pop("PYTHONPATH")
            if before is not None:
                os.environ["PYTHONPATH"] = before


def fault_of(name: str, extent: Extent) -> str:
    """Return why a set does not pass; empty: it passes."""
    faults = check(f"{FAMILY}:{name}", extent)
    return f"{faults[0].check}: {faults[0].sentence}"[:200] if faults else ""


def main() -> None:
    """Try sets and write the list."""
    from reasoning_gym.factory import DATASETS

    parser = argparse.ArgumentParser(prog="python -m tests.tasks.gym.sets_list", description="Make the list of sets.")
    parser.add_argument("names", nargs="*", help="sets to try; none: all")
    parser.add_argument("--prompts", type=int, default=24, help="most prompts of each split")
    parser.add_argument("--seconds", type=float, default=5.0, help="most time of a prompt or a score")
    given = parser.parse_args()
    version = importlib.metadata.version(LIBRARY)
    listed: dict[str, Any] = json.loads(SETS.read_text()) if SETS.exists() else {}
    if listed.get("version") != version:
        listed = {"version": version, "sets": [], "refused": {}}
    passed, refused = set(listed["sets"]), dict(listed["refused"])
    with _sets_opened():
        for name in given.names or sorted(set(DATASETS) - {"composite"}):
            fault = fault_of(name, Extent(given.prompts, given.seconds, 60.0))
            print(f"{name}: {fault or 'ok'}", flush=True)
            passed.discard(name)
            refused.pop(name, None)
            if fault:
                refused[name] = fault
            else:
                passed.add(name)
            document = {"version": version, "sets": sorted(passed), "refused": dict(sorted(refused.items()))}
            SETS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
