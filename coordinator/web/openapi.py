"""The description of the HTTP API, made from the types that it answers with: OpenAPI 3.1, at `/api/v1/openapi.json`."""

import functools
import importlib.metadata
from typing import Any, Final

import msgspec

from echo2.coordinator.metrics.views import NodeRow, NodeView, RunState, TeamRow

_REFERENCE: Final = "#/components/schemas/{name}"
_CSV: Final = {
    "/api/v1/nodes.csv": "All nodes, most accepted work first.",
    "/api/v1/steps.csv": "The learner's steps.",
    "/api/v1/tasks.csv": "The tasks of the run.",
    "/api/v1/market.csv": "The supply curve of the market's epoch; a header alone in a run that pays in points.",
}
_PEER: Final = {
    "name": "peer", "in": "path", "required": True, "description": "Its peer id.", "schema": {"type": "string"},
}  # fmt: skip
_PAGES: Final = [
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 400}},
    {"name": "after", "in": "query", "description": "Of the header Link.", "schema": {"type": "string"}},
]


@functools.cache
def document() -> bytes:
    """Return the description as JSON."""
    kinds = [RunState, list[NodeRow], list[TeamRow], NodeView]
    (state, rows, teams, node), components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    paths: dict[str, Any] = {
        "/api/v1/run": _get("The state of the run.", "application/json", state),
        "/api/v1/nodes": _get("Nodes, most accepted work first, in pages.", "application/json", rows),
        "/api/v1/nodes/{peer}": _get("A node, what it made and what was learned from it.", "application/json", node),
        "/api/v1/openapi.json": _get("This description.", "application/json", {"type": "object"}),
        "/api/v1/teams": _get("Teams, most accepted work first, at most 50.", "application/json", teams),
        **{path: _get(summary, "text/csv", {"type": "string"}) for path, summary in _CSV.items()},
    }
    paths["/api/v1/nodes"]["get"]["parameters"] = _PAGES
    paths["/api/v1/nodes/{peer}"]["get"]["parameters"] = [_PEER]
    info = {"title": "echo2 coordinator", "version": importlib.metadata.version("echo2")}
    whole = {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}
    return msgspec.json.encode(whole)


def _get(summary: str, kind: str, schema: object) -> dict[str, Any]:
    answer = {"description": summary, "content": {kind: {"schema": schema}}}
    return {"get": {"summary": summary, "responses": {"200": answer}}}
