"""The process in which this node's engine runs, by the node's settings."""

from echo2.engines.process.process import HOST, EngineProcess
from echo2.engines.server.variables import VARIABLE
from echo2.node.config import NodeConfig
from echo2.runtime.stand_ins import process_command


def engine_child(config: NodeConfig) -> EngineProcess:
    """Return the process, not started. A running server's address goes to it as a variable."""
    env = {VARIABLE: config.server} if config.server else {}
    command = process_command("engine", HOST)
    return EngineProcess(threads=config.threads, rows=config.rows, env=env, command=command)
