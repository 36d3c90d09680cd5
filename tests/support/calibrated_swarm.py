"""A swarm whose nodes are of a class that is not exact, and its Calibrations."""

from echo2.coordinator.verification.calibration import Calibration, seal_calibration
from echo2.coordinator.verification.evidence import LEAST_P
from echo2.coordinator.verification.token_evidence import BINS, ONE, STATISTICS
from echo2.p2p.envelope import document_hash
from echo2.weights.snapshot import Snapshot
from tests.support.fake_coordinator import InProcessEngine, Node
from tests.support.swarm import Swarm

CLASS, ROUNDING = "bigram/bfloat16/cpu", "bfloat16"


def write_calibration(
    swarm: Swarm,
    version: int,
    at: int,
    rounding: str = ROUNDING,
    root: bytes | None = None,
    tables: dict[str, list[int]] | None = None,
) -> bytes:
    """Write a signed Calibration, as `echo2-coord calibrate` does; return its hash. `root`: of other weights. `tables`:
    in place of those of a class whose tokens never differ."""
    run = swarm.run
    root = root or _root(swarm, version)
    half = [(ONE >> 1) + LEAST_P] * BINS
    tables = tables or {name: half if name in ("above", "below") else [LEAST_P] * BINS for name in STATISTICS}
    sealed = seal_calibration(
        Calibration(
            run=run.id, rounding=rounding, classes=[CLASS], devices=[], builds=["a table"], era=1, version=version,
            root=root, machines={"one": 2_000}, tables=tables, bound=1, at=at,
        ),
        run.keys.ledger,
    )  # fmt: skip
    run.folder.calibrations.mkdir(exist_ok=True)
    (run.folder.calibrations / f"{at}.calibration").write_bytes(sealed)
    return document_hash(sealed)


def _root(swarm: Swarm, version: int) -> bytes:
    if swarm.coordinator is None:  # before the run: version 0 is the model
        return Snapshot(swarm.run.folder.model / "model.safetensors").root
    root = swarm.coordinator.group_service.leases.root_of(1, version)
    assert root is not None
    return root


def node_of_the_class(swarm: Swarm) -> Node:
    return swarm.node("alice", engine=InProcessEngine(gpu=CLASS))
