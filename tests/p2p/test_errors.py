"""The errors of the network plane beside those of other packages."""

from echo2.p2p.errors import LocalNetworkFault
from echo2.runtime.errors import LocalFault


def test_a_local_fault_of_the_network_is_caught_as_a_local_fault_of_any_package() -> None:
    assert issubclass(LocalNetworkFault, LocalFault)
