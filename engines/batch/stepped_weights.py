"""The weights that an engine has loaded, as files: a snapshot, or a folder that is stepped in place.

A step changes the folder on disk first; the engine then writes the same list of changes into its own copy. If that
fails, the engine drops its copy: the folder on disk is whole, and is loaded again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from echo2.engines.engine import EngineError, Loaded
from echo2.weights.diff import Change
from echo2.weights.errors import BadSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import open_weights
from echo2.weights.snapshot import Snapshot


class SteppedWeights:
    """`snapshot`: the present version."""

    def __init__(self, weights: Path, tell: Callable[[], None] = lambda: None) -> None:
        """Open a snapshot file, or a folder of weights.logged_weights. `tell`: called as the weights are read. Raises
        BadSnapshot, StoreCorrupt, FileNotFoundError."""

        def goes_on() -> bool:
            tell()
            return False

        self._weights = weights
        self._rolling = open_weights(weights, goes_on) if weights.is_dir() else None
        self.snapshot = Snapshot(self._rolling.path if self._rolling else weights)
        root = self.snapshot.find_root(tell)
        if self._rolling and self._rolling.root != root:
            raise BadSnapshot(
                f"{self._rolling.path} is damaged (its bytes do not have root {self._rolling.root.hex()[:16]}): fetch "
                "it again"
            )

    def describe_loaded(self, parameters: int, nbytes: int) -> Loaded:
        """Return what an engine says that has loaded them. `nbytes`: bytes of memory that they take."""
        rolling = self._rolling
        return Loaded(
            root=self.snapshot.root,
            parameters=parameters,
            nbytes=nbytes,
            behind=rolling.behind() if rolling else [],
            ahead=rolling.ahead() if rolling else [],
        )

    def step_by(self, payload: Path, root: bytes, keep: int) -> Iterator[Change]:
        """Apply a payload to the folder; return the changes. Raises as `Rolling.apply` does."""
        rolling = self._folder()
        if rolling.root != self.snapshot.root:
            raise WrongBase("another engine has moved these weights: step to their present version first")
        rolling.apply(payload, root, keep=keep)
        self.snapshot = rolling.snapshot
        return rolling.last_changes()

    def step_to(self, root: bytes) -> Iterator[Iterator[Change]]:
        """Undo or redo steps of the folder up to `root`; yield the changes of each after it. Where another engine has
        moved the folder there, yield the changes that led there. Raises WrongBase."""
        rolling = self._folder()
        if rolling.root == root != self.snapshot.root:
            changes = rolling.changes_since(self.snapshot.root)
            self.snapshot = rolling.snapshot
            yield from changes
            return
        back = root in rolling.behind()
        if not back and root not in (rolling.root, *rolling.ahead()):
            raise WrongBase(f"no kept step leads to {root.hex()[:16]}: load that version, or step by its payload")
        while rolling.root != root:
            if back:
                rolling.back()
            else:
                rolling.redo()
            self.snapshot = rolling.snapshot
            yield rolling.last_changes(back=back)

    def _folder(self) -> Rolling:
        if self._rolling is None:
            raise EngineError("the loaded weights are a snapshot file, which cannot be stepped: load a folder")
        # Another engine may have been killed within a step of this folder: opening it finishes that step.
        self._rolling = open_weights(self._weights)
        return self._rolling
