"""`echo2-node status --share`: the address of this node's own part of the run's page, and its badge. Pure."""

from collections.abc import Mapping
from typing import Any

from echo2.node.errors import BadConfig, TryLater


def share_of(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the addresses, and the badge as a line of Markdown. `status`: the daemon's answer. Raises `TryLater` while
    the run is not known, `BadConfig` if it has no page."""
    if status["run"] is None:
        raise TryLater("the run has not answered this node yet: repeat it once it is connected")
    link = status["permalink"]
    if not link:
        raise BadConfig(f"the run {status['run']} names no page, so nothing can be shared: ask its operator for one")
    badge = f"{link}.svg"
    return {"page": link, "badge": badge, "markdown": f"[![echo2]({badge})]({link})"}
