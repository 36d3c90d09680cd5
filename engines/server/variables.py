"""The variables by which an engine's process learns of a running server."""

from typing import Final

VARIABLE: Final = "ECHO2_SERVER"
"""The server's address."""
KEY: Final = "ECHO2_SERVER_KEY"
"""A bearer token for it, which no setting and no log repeats."""
