"""Right answers earn clearly more than wrong ones, in every task of this build."""

import pytest

from echo2.tasks import plugins, registry
from echo2.tasks.check_pay import pay_faults
from echo2.tasks.check_probe import ask
from echo2.tasks.plugins import PluginFault

OWN = sorted({name for name, _ in registry.list_tasks()})
WITH_EXTRAS = ["math", "poker:kuhn", "poker:leduc", "poker:holdem"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN, *WITH_EXTRAS])
def test_a_task_of_this_build_pays_right_answers_alone(name: str) -> None:
    try:
        task = plugins.find(name)
    except PluginFault as fault:
        if "needs the extra" not in str(fault):
            raise
        pytest.skip(str(fault))
    assert list(pay_faults(lambda question: ask(task, question), task.size("train"), 200)) == []
