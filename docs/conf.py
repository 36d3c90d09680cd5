"""The site of these pages, by Sphinx: `make docs`. Fonts are those of the reader's system; a build needs no network."""

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

project = "echo2"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "docs/index"
# The pages link to README and CONTRIBUTING beside docs/, so the repository is the source, without its other folders.
include_patterns = ["*.md", "changes/README.md", "plugins/*/README.md", "docs/**"]
exclude_patterns = [
    "docs/log",
    *(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in {"docs", "changes", "plugins"}),
]
source_suffix = {".md": "markdown"}
# The decisions are reached by their index: in the navigation they would make each page larger.
suppress_warnings = ["toc.not_included"]
# Anchors of headings as GitHub makes them.
myst_heading_anchors = 6
html_theme = "furo"
html_title = f"echo2 {release}"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}

PARTS = {
    "Lend a machine": "volunteer running-a-node engines earnings hardware trust faq",
    "Train a model": "training models tasks environments environment-in-ten-minutes planning versions money compare",
    "Operate a run": "first-run install running-a-run when-something-is-wrong pauses several-gpus calibration "
    "nodes-and-verdicts keys network backups run-folder trackers ../plugins/echo2-rails/README",
    "Check it": "threat-model attack-costs trust-conformance results/README benchmarks",
    "Reference": "reference/commands reference/settings reference/node-settings reference/refusals reference/limits "
    "reference/log-events reference/metrics reference/api reference/math-data",
    "Change it": "architecture ../CONTRIBUTING reference/rules protocol/README adr/README libp2p-faults ../README "
    "../SECURITY ../RELEASING ../CHANGELOG ../changes/README",
}
"""The navigation: caption -> pages."""


def setup(app: Any) -> None:
    """Add the navigation, and a page for the folder of the site."""
    app.connect("source-read", navigate)
    app.connect("build-finished", redirect)


def navigate(app: Any, name: str, source: list[str]) -> None:
    """Add the pages below a page: of the first one all parts, of a folder's README its other pages."""
    path = ROOT / f"{name}.md"
    parts = PARTS if name == root_doc else {}
    if name in {"docs/protocol/README", "docs/results/README"}:
        parts = {"Pages": " ".join(sorted(page.stem for page in path.parent.glob("*.md") if page != path))}
    for caption, pages in parts.items():
        listed = "\n".join(pages.split())
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def redirect(app: Any, error: Exception | None) -> None:
    """Lead from the folder of the site to its first page."""
    if error is None:
        page = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(f"{page}<title>echo2</title>\n")
