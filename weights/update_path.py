"""Choose the edges to fetch: the cheapest chain from the local snapshots to the head. Pure.

Content roots identify snapshots. So a chain may start at the public base model, at any kept snapshot, or at nothing. It
may cross from one era to the next where both share a snapshot.
"""

import heapq
from collections.abc import Collection, Iterable

from echo2.weights.documents import Edge

_NO_ROOT = None
_Rank = tuple[int, int, bytes]


def path_to(edges: Iterable[Edge], known: Collection[bytes], head: bytes) -> list[Edge] | None:
    """Return the edges that lead, in order, from a snapshot in `known` (content roots), or from nothing, to root
    `head`.

    The chain has the fewest payload bytes; among equals the fewest edges, then the smallest start (nothing before any
    root), then the smallest payload hashes, then the newest versions (two versions may have the same weights). [] if
    `head` is in `known`; None if no chain leads there. Dijkstra (1959); each edge is looked at once."""
    if head in known:
        return []
    leaving: dict[bytes | None, list[Edge]] = {}
    for edge in edges:
        leaving.setdefault(edge.base_root, []).append(edge)
    queue: list[tuple[int, int, tuple[bytes, ...], tuple[_Rank, ...], bytes | None, tuple[Edge, ...]]]
    # Hashes (the start's root first) and then ranks decide every tie, so roots and edges are never compared by order.
    queue = [(0, 0, (b"" if root is None else root,), (), root, ()) for root in (_NO_ROOT, *known)]
    heapq.heapify(queue)
    done: set[bytes | None] = set()
    while queue:
        cost, steps, hashes, ranks, root, chain = heapq.heappop(queue)
        if root == head:
            return list(chain)
        if root in done:
            continue
        done.add(root)
        for edge in leaving.get(root, []):
            if edge.root not in done:
                names, order = (*hashes, edge.payload_hash), (*ranks, _rank(edge))
                heapq.heappush(queue, (cost + edge.length, steps + 1, names, order, edge.root, (*chain, edge)))
    return None


def reachable(edges: Iterable[Edge], known: Collection[bytes]) -> set[bytes]:
    """Return the roots to which edges lead from nothing or from a snapshot in `known`, those of `known` among them."""
    leaving: dict[bytes | None, list[bytes]] = {}
    for edge in edges:
        leaving.setdefault(edge.base_root, []).append(edge.root)
    reached = set(known)
    queue: list[bytes | None] = [_NO_ROOT, *known]
    while queue:
        ends = [root for root in leaving.get(queue.pop(), ()) if root not in reached]
        reached.update(ends)
        queue += ends
    return reached


def _rank(edge: Edge) -> _Rank:
    return -edge.era, -edge.version, edge.to_bytes()
