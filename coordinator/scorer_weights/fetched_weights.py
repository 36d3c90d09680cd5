"""Load the version that a group names into a scorer on another host, which fetches payloads as a node does.

The moves are those of scorer_weights/scorer_weights.py. The host's own folder stands in the place of this machine's:
the scorer gets no file from here, but what verifies those that it fetches (coordinator/ray_scorers/fetched_folder.py).
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.ray_scorers.messages import (
    FetchAllCall,
    FetchStepCall,
    ForgetCall,
    PayloadSource,
    PayloadStep,
    ShowCall,
)
from echo2.coordinator.scorer_weights.scorer_weights import StepBy, StepTo, VersionMoves
from echo2.engines.engine import Loaded
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.p2p.multiaddr import address_of
from echo2.protocol.authority import Asset
from echo2.protocol.versions import manifest_of_edge
from echo2.weights.documents import Edge
from echo2.weights.update_path import path_to

log = structlog.get_logger("coordinator")


class FetchedWeights(VersionMoves):
    """The weights of a scorer on another host."""

    def __init__(
        self,
        scorer: SupervisedEngine,
        publisher: Publisher,
        *,
        model: Sequence[Asset],
        pin: bytes,
        addresses: Callable[[], Awaitable[list[str]]],
        oldest: Callable[[], tuple[int, int]],
    ) -> None:
        """`model`: the model's files. `pin`: pin of the HTTPS server. `addresses`: those at which nodes reach it."""
        super().__init__(scorer, publisher, oldest=oldest)
        self._remote, self._model, self._pin, self._addresses = scorer, list(model), pin, addresses

    async def shown_hash(self, lease: bytes) -> bytes:
        """See `VersionMoves`."""
        return await self._remote.ask(ShowCall(lease=lease))

    async def _make(self, move: StepTo | StepBy) -> None:
        if isinstance(move, StepTo):
            await self._scorer.step_to(move.root)
            return
        call = FetchStepCall(source=await self._source(), step=_step(move.edge), keep=move.keep)
        await self._remote.ask(call)
        log.info("scorer stepped", version=move.edge.version, keep=move.keep)

    async def _load(self) -> Loaded | None:
        return await self._remote.ask(FetchAllCall(source=await self._source(), model=self._model))

    async def _remade(self, root: bytes | None) -> bool:
        chain = None if root is None else path_to(self._publisher.stored.payloads(), (), root)
        if root is None or not chain:
            return False
        steps = [_step(edge) for edge in chain]
        await self._remote.ask(FetchAllCall(source=await self._source(), model=self._model, chain=steps))
        log.info("scorer's weights reconstructed", root=root.hex()[:16], edges=len(chain))
        return True

    async def _forget(self) -> None:
        await self._remote.ask(ForgetCall())

    async def _source(self) -> PayloadSource:
        reached = [one for one in await self._addresses() if address_of(one).https_url is not None]
        return PayloadSource(reached, self._pin)


def _step(edge: Edge) -> PayloadStep:
    return PayloadStep(manifest_of_edge(edge), edge.root)
