"""The error tree: the drawing at the top of p2p/errors.py is the one in the code."""

import re

from echo2.p2p import errors
from echo2.p2p.errors import LocalNetworkFault, P2PError
from echo2.runtime.errors import LocalFault


def drawn() -> dict[str, str]:
    """Return error -> its parent, as the module's docstring draws them."""
    parents: dict[str, str] = {}
    path = ["P2PError"]
    for row in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│ ]*)[├└]── (\w+)", row)
        if match is not None:
            depth = len(match[1]) // 4 + 1
            path[depth:] = [match[2]]
            parents[match[2]] = path[depth - 1]
    return parents


def test_the_drawn_tree_is_that_of_the_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, P2PError)]
    assert drawn() == {one.__name__: one.__bases__[0].__name__ for one in classes if one is not P2PError}


def test_a_local_fault_of_the_network_is_caught_as_a_local_fault_of_any_package() -> None:
    assert issubclass(LocalNetworkFault, LocalFault)
