"""The process in which this node's engine runs, by the node's settings.

An engine option of the owner is a field of `NodeConfig` (node/config.py) and an argument here; its flag stands in
node/command_line/node_options.py. `EngineProcess` (engines/process/process.py) turns it into a variable of the
process, from which the engine's `create` reads it (engines/batch/row_limit.py, `owners_most`). Engine, device and
number format are arguments of the process's first call instead (engines/process/messages.py, `ProbeCall`).
"""

from echo2.engines.devices.memory_reserve import RESERVE_VARIABLE
from echo2.engines.process.process import HOST, EngineProcess
from echo2.engines.server.variables import VARIABLE
from echo2.node.config import NodeConfig
from echo2.runtime import priority
from echo2.runtime.stand_ins import process_command
from echo2.runtime.usable_cores import threads_of


def engine_threads(config: NodeConfig) -> int:
    """Return the CPU threads of each of this node's engines."""
    return threads_of(config.threads, config.gpu.count(",") + 1)


def engine_child(config: NodeConfig) -> EngineProcess:
    """Return the process, not started. A running server's address goes to it as a variable."""
    env = {VARIABLE: config.server} if config.server else {}
    env |= {priority.VARIABLE: config.priority}
    reserves = config.by_device("reserve")
    if any(reserves.values()):
        env[RESERVE_VARIABLE] = " ".join(f"{name}={int(value * 1e9)}" for name, value in reserves.items())
    command = process_command("engine", HOST)
    return EngineProcess(threads=engine_threads(config), rows=config.rows, env=env, command=command)


def starting_words(config: NodeConfig) -> str:
    """Say that the engine starts, and why that may take long."""
    gives_way = "; it computes when other programs leave the CPU idle, unless the setting priority is low or normal"
    return f"the engine is not ready yet{gives_way if config.priority == 'idle' else ''}"
