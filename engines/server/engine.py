"""The engine on a server that runs already: vLLM's, on this machine or another, over one GPU or several.

Rules
1. Token ids go in; token ids, log-probabilities and the version of the weights come out. Prompts are never text.
2. The server is admitted only where the rule from seeds to tokens can be checked: engines.server.requirements names
   what is missing, and engines.server.served_model checks each answer.
3. The weights are the run's: whole at first, then the elements that a version changes, by the server's own end points.
   Files are on this machine only.
4. Where a step's weights cannot be sent, nothing is loaded until the next `load`, which sends all of them.
5. This engine does not score: the scorer is the engine transformers.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from echo2.engines.batch import float16_range
from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.checkpoint_patches import patches_of_changes, whole
from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.request_batch import RequestBatch
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.devices.devices import Gpu, Inventory
from echo2.engines.engine import Dtype, EngineError, Job, Loaded, Sample, SampleScore
from echo2.engines.server import requirements
from echo2.engines.server.address import client_of
from echo2.engines.server.http_client import HttpClient
from echo2.engines.server.served_model import ServedModel
from echo2.weights.diff import Change


class _Live(NamedTuple):
    served: ServedModel
    dtype: Dtype
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: RequestBatch

    def describe_loaded(self) -> Loaded:
        snapshot = self.weights.snapshot
        return self.weights.describe_loaded(sum(entry.elements for entry in snapshot.tensors), snapshot.nbytes)

    def apply(self, changes: Iterable[Change]) -> None:
        snapshot = self.weights.snapshot
        fitting = float16_range.check_changes(changes) if self.dtype == "float16" else changes
        self.served.write(patches_of_changes(fitting, snapshot), snapshot.root)
        self.batch.root = snapshot.root

    def close(self) -> None:
        self.batch.clear()


class ServerEngine(BatchEngine[_Live]):
    """`engines.engine.Engine`."""

    def __init__(self, client: HttpClient, dtype: Dtype) -> None:
        """Raises EngineError for a server that cannot be used."""
        super().__init__()
        requirements.demand(client, dtype)
        self._client, self._dtype = client, dtype

    def build(self, model: Path, weights: SteppedWeights) -> _Live:
        """See `BatchEngine.build`."""
        snapshot = weights.snapshot
        if self._dtype == "float16":
            for entry in snapshot.tensors:
                float16_range.check(snapshot.bits(entry.name), entry.dtype, entry.name)
        settings = requirements.info_of(self._client).vllm_config
        served = ServedModel(self._client, settings, _vocabulary(model))
        served.write(whole(snapshot), snapshot.root, whole=True)
        rollouts = JobRollouts(model, served.vocabulary)
        batch = RequestBatch(served, rollouts.begin_rollouts, served.vocabulary, snapshot.root)
        return _Live(served, self._dtype, weights, rollouts, batch)

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Refuse (rule 5)."""
        raise EngineError("the engine server does not score: use the engine transformers")


def inventory() -> Inventory:
    """Say on what the server computes. Raises EngineError."""
    client = client_of()
    try:
        name, kind = f"the server {client.address}", requirements.info_of(client).vllm_config.device_config.device_type
    finally:
        client.close()
    return Inventory(cpu=name, gpus={"cuda": [Gpu(name=name)]} if kind == "cuda" else {})


def create(device: str, dtype: Dtype) -> ServerEngine:
    """Make the engine for engines.registry. Raises EngineError."""
    return ServerEngine(client_of(), dtype)


def _vocabulary(model: Path) -> int:
    try:
        config = json.loads((model / "config.json").read_bytes())
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EngineError(f"{model} has no config.json with a vocab_size: give the folder of a model") from error
