"""Errors of other packages become errors of the node, each with the exit code that names its fix."""

import pytest

from echo2.engines.engine import EngineUnusable
from echo2.node.error_translation import translated_errors
from echo2.node.errors import BadConfig, NodeError, NoUsableDevice, RefusedByRun, TrustFailure, TryLater, own_code
from echo2.p2p.errors import Unreachable
from echo2.protocol.authority import WrongRoot
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.weights.errors import StoreBusy, StoreCorrupt

TRANSLATIONS: dict[type[Exception], tuple[type[NodeError], Exit]] = {
    EngineUnusable: (NoUsableDevice, Exit.NO_DEVICE),
    WrongRoot: (TrustFailure, Exit.TRUST),
    DiskFull: (TryLater, Exit.TEMPORARY),
    StoreBusy: (TryLater, Exit.TEMPORARY),
    LocalFault: (BadConfig, Exit.CONFIG),
    StoreCorrupt: (BadConfig, Exit.CONFIG),
    Unreachable: (TryLater, Exit.TEMPORARY),
}


@pytest.mark.parametrize("error", TRANSLATIONS)
def test_an_error_of_another_package_keeps_its_sentence_and_gets_an_exit_code(error: type[Exception]) -> None:
    expected, code = TRANSLATIONS[error]
    with pytest.raises(expected, match="what to do") as ended, translated_errors():
        raise error("what to do")
    assert type(ended.value) is expected
    assert own_code(ended.value) == code


def test_an_error_of_the_node_and_an_unknown_one_pass_unchanged() -> None:
    with pytest.raises(RefusedByRun, match="banned") as refused, translated_errors():
        raise RefusedByRun("banned")
    assert own_code(refused.value) == Exit.REFUSED
    with pytest.raises(ZeroDivisionError) as crashed, translated_errors():
        raise ZeroDivisionError
    assert own_code(crashed.value) is None
