"""The one code that libp2p's signed records have, in place of the library py-multicodec."""

from typing import Final

Code = int
"""The number of a format."""
LIBP2P_PEER_RECORD: Final = 0x0301


def get_prefix(name: str) -> bytes:
    """Refuse the name of a format: records are made with the bytes of theirs."""
    raise ValueError(f"{name} is not a known format")
