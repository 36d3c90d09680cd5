"""The process of a node's engine is started by the node's settings."""

from pathlib import Path

import pytest

from echo2.engines.devices.memory_reserve import RESERVE_VARIABLE
from echo2.engines.process.process import HOST
from echo2.engines.server.variables import VARIABLE
from echo2.node import engine_child
from echo2.node.config import load_config
from echo2.runtime import priority
from echo2.runtime.python_command import module_command
from echo2.runtime.settings import SettingsFault
from echo2.runtime.usable_cores import usable_cores


def test_threads_rows_and_a_running_servers_address_reach_the_engines_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_child, "EngineProcess", lambda **given: given)
    nowhere = {"ECHO2_CONFIG": str(tmp_path / "none.toml")}
    config, _ = load_config({"server": "http://127.0.0.1:8000", "threads": 2, "rows": 8}, nowhere)
    assert engine_child.engine_child(config) == {
        "threads": 2, "rows": 8, "command": module_command(HOST),
        "env": {VARIABLE: "http://127.0.0.1:8000", priority.VARIABLE: "idle"},
    }  # fmt: skip
    assert engine_child.engine_child(load_config({}, nowhere)[0])["env"] == {priority.VARIABLE: "idle"}
    limited, _ = load_config({"reserve": 2, "devices": {"cuda:1": {"reserve": 0}, "cpu": {"duty": 50}}}, nowhere)
    assert engine_child.engine_child(limited)["env"][RESERVE_VARIABLE] == "=2000000000 cuda:1=0"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert engine_child.engine_threads(load_config({}, nowhere)[0]) == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert engine_child.engine_threads(load_config({"gpu": "cpu"}, nowhere)[0]) == usable_cores()
    assert engine_child.engine_threads(load_config({"gpu": ",".join(["cpu"] * 64)}, nowhere)[0]) == 1
    with pytest.raises(SettingsFault):
        load_config({"server": "there"}, nowhere)
