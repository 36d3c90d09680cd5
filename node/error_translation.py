"""The translation of other packages' errors into those of node/errors.py, where a person can fix the cause."""

import contextlib
from collections.abc import Iterator

from echo2.engines.engine import EngineUnusable
from echo2.node.errors import BadConfig, NodeError, NoUsableDevice, TrustFailure, TryLater
from echo2.p2p.errors import Unreachable
from echo2.protocol.authority import WrongRoot
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.weights.errors import StoreBusy, StoreCorrupt


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Raise a `NodeError` in place of an error of another package from the `with` block, if a person can fix the
    cause."""
    try:
        yield
    except NodeError:
        raise
    except EngineUnusable as error:
        raise NoUsableDevice(str(error)) from error
    except WrongRoot as error:
        raise TrustFailure(str(error)) from error
    except (DiskFull, StoreBusy) as error:
        raise TryLater(str(error)) from error
    except (LocalFault, StoreCorrupt) as error:
        raise BadConfig(str(error)) from error
    except Unreachable as error:
        raise TryLater(str(error)) from error
