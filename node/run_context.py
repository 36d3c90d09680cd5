"""The context shared by a daemon's parts: the run's invite, the node's key, trusted documents, stored files, clock."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.node.error_translation import translated_errors
from echo2.node.home import run_folder
from echo2.node.home_instance import HomeInstance
from echo2.node.trust.run_clock import RunClock
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import public_bytes
from echo2.weights.store import Store


@dataclass(frozen=True)
class RunContext:
    """A node's open run. `key`: the node's. `folder`: the run's data. `seed`: seed of random waits and of choices among
    peers. `instance`: instance of this daemon, and of those before it."""

    invite: Invite
    key: Ed25519PrivateKey
    folder: Path
    trust_store: TrustStore
    store: Store
    clock: RunClock
    seed: int
    instance: HomeInstance

    @classmethod
    def open(
        cls, home: Path, invite: Invite, key: Ed25519PrivateKey, *, local: Callable[[], int], seed: int
    ) -> "RunContext":
        """Open the run of `invite` in `home`, whose lock the caller holds. `local`: this machine's clock, milliseconds.
        Raises `NodeError`."""
        folder = run_folder(home, invite.run)
        with translated_errors():
            trust_store = TrustStore(folder / "trust", invite.run, invite.root_hash, local())
            store = Store(folder / "store")
            instance = HomeInstance(folder)
        return cls(invite, key, folder, trust_store, store, RunClock(local), seed, instance)

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self.invite.run

    @property
    def node(self) -> bytes:
        """This node's public key."""
        return public_bytes(self.key)
