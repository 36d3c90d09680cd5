"""Find the engine's server in the environment of the engine's process, from the node's setting `server`."""

import os
from collections.abc import Mapping

from echo2.engines.engine import EngineError
from echo2.engines.server.http_client import ANSWER_SECONDS, HttpClient
from echo2.engines.server.variables import KEY, VARIABLE


def missing() -> list[str]:
    """Return what this engine lacks: the address of a server."""
    return [] if os.environ.get(VARIABLE) else ["the setting server"]


def client_of(environ: Mapping[str, str] = os.environ, *, patience: float = ANSWER_SECONDS) -> HttpClient:
    """Make the client of the server that the environment names. `patience`: seconds for an answer. Raises
    EngineError."""
    address = environ.get(VARIABLE, "")
    if not address.startswith(("http://", "https://")):
        fault = f"{address!r} is no address of a server" if address else "no server is named"
        raise EngineError(f"{fault}: write --server http://127.0.0.1:8000")
    return HttpClient(address, key=environ.get(KEY, ""), patience=patience)
