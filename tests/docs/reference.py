"""Write the generated pages of docs/reference from the code: `python -m tests.docs.reference`.

Each page has one source: the commands' own parsers, the table of refusals, the metrics of a busy run, the types of the
API. tests/docs/test_reference.py compares.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import typer

from echo2.coordinator.web import openapi, prometheus, refusal_texts
from echo2.protocol.refusals import REASONS
from tests.support import pictures
from tests.support.command_tree import PROGRAMS, command_tree
from tests.support.paths import ROOT

FOLDER: Final = ROOT / "docs" / "reference"
MADE: Final = "Made by `python -m tests.docs.reference`; a test keeps it fresh.\n"


def cell(text: str) -> str:
    """Return a text as the content of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def rows(*header: str) -> list[str]:
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]


def leaves(command: Any, words: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield each command of a tree that has no sub-commands, with its words."""
    children = getattr(command, "commands", None)
    if not children:
        yield words, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from leaves(child, [*words, name])


def commands() -> str:
    """Return the page of all commands with their arguments and options."""
    parts = ["# Commands", "", "*For everybody. Look up one command; nobody reads all of them.*", "", MADE]
    for program in PROGRAMS:
        parts += [f"## {program}", ""]
        for words, command in leaves(command_tree(program), [program]):
            name = " ".join(words)
            arguments = [word for one in command.params for word in one.get_usage_pieces(typer.Context(command))]
            parts += [f"### {name}", "", f"`{' '.join([name, *arguments])}`", "", _prose(command.help or ""), ""]
            shown = [one for one in command.params if not getattr(one, "hidden", False)]
            if shown:
                table = [f"| {_spelling(one)} | {_default(one)} | {cell(one.help or '')} |" for one in shown]
                parts += [*rows("option", "default", "meaning"), *table, ""]
    return "\n".join(parts)


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _spelling(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or callable(value) or value == "" or isinstance(value, bool | list | tuple):
        return ""
    return f"`{value}`"


def _prose(text: str) -> str:
    """Return a command's help as one paragraph per paragraph, without what Markdown would take for markup."""
    return "\n\n".join(cell(paragraph) for paragraph in re.split(r"\n\s*\n", text))


def refusals() -> str:
    """Return the page of the coordinator's refusals."""
    reaction = {
        "": "", "greet": "says hello again", "end": "ends", "other engine": "takes another number format",
        "finish": "delivers, then ends", "other version": "asks under its next version", "wait": "waits",
        "fewer": "asks with fewer open leases", "moved": "takes the new addresses",
    }  # fmt: skip
    parts = [
        "# Refusals", "", "*For owners of nodes and operators. Look up the code that a log, `why` or the page shows.*",
        "", MADE, "Words in braces are filled in. *Who can act*: the side that can remove the cause. *Again*: whether",
        "the same request may succeed later. *The node*: its reaction, if it is more than that.", "",
        *rows("code", "sentence", "who can act", "again", "the node"),
    ]  # fmt: skip
    for code, reason in REASONS.items():
        again = "yes" if reason.retry else "no"
        parts.append(f"| `{code}` | {cell(reason.sentence)} | {reason.fault} | {again} | {reaction[reason.then]} |")
    parts += ["", "## Codes of groups on the page", "", *rows("code", "text")]
    parts += [f"| `{code}` | {cell(text)} |" for code, text in refusal_texts.WORDS.items()]
    return "\n".join([*parts, ""])


def metrics() -> str:
    """Return the page of the metrics that `/metrics` has, of a run with a market."""
    parts = [
        "# Metrics", "", "*For operators who watch a run with Prometheus. Look up one metric.*", "", MADE,
        "The page's port serves them at `/metrics`. Metrics of the market exist in runs that pay money, and "
        "those of a node once it has accepted work.", "",
        *rows("metric", "type", "labels", "meaning"),
    ]  # fmt: skip
    for name, (kind, labels, meaning) in sorted(metric_rows().items()):
        parts.append(f"| `{name}` | {kind} | {', '.join(f'`{one}`' for one in labels)} | {cell(meaning)} |")
    return "\n".join([*parts, ""])


def metric_rows() -> dict[str, tuple[str, list[str], str]]:
    """Return the type, the labels and the line of help of each metric."""
    texts = [prometheus.exposition(state).decode() for state in pictures.EVERY_METRIC]
    known: dict[str, tuple[str, list[str], str]] = {}
    meaning = ""
    for row in "".join(texts).splitlines():
        words = row.split(None, 3)
        if row.startswith("# HELP"):
            meaning = words[3]
        elif row.startswith("# TYPE"):
            known.setdefault(words[2], (words[3], [], meaning))
        elif row:
            name, _, rest = row.partition("{")
            name = re.sub(r"_(bucket|sum|count)$", "", name.split()[0])
            kind, labels, help_line = known[name]
            labels += [one for one in re.findall(r'(\w+)="', rest) if one not in {*labels, "le"}]
            known[name] = (kind, labels, help_line)
    return known


def api() -> str:
    """Return the page of the HTTP API."""
    document = json.loads(openapi.document())
    parts = [
        "# HTTP API", "", "*For programs that read a run. The page's port serves it; none of it needs a key or",
        "changes anything.*", "", MADE, "`/api/v1/openapi.json` has the same for programs (OpenAPI 3.1).", "",
        *rows("path", "answer", "type"),
    ]  # fmt: skip
    for path, methods in document["paths"].items():
        content = methods["get"]["responses"]["200"]["content"]
        kind = next(f"`{name}`" if "csv" in name else _type(one["schema"]) for name, one in content.items())
        parts.append(f"| `{path}` | {cell(methods['get']['summary'])} | {kind} |")
    parts += ["", "`/api/v1/nodes` takes `limit` (at most 400) and `after`; its header `Link` names the next page."]
    for name, schema in document["components"]["schemas"].items():
        about, glosses = glossed(schema.get("description", ""))
        parts += ["", f"## {name}", "", *([cell(about), ""] if about else []), *rows("field", "type", "meaning")]
        for field, value in schema["properties"].items():
            parts.append(f"| `{field}` | {_type(value)} | {cell(glosses.get(field, ''))} |")
    return "\n".join([*parts, ""])


def glossed(description: str) -> tuple[str, Mapping[str, str]]:
    """Split a docstring into what it says of the whole and the gloss of each field: "`rate`: tokens per second."."""
    about, *pairs = re.split(r"((?:`\w+`(?:, | and )?)+): ", " ".join(description.split()))
    glosses: dict[str, str] = {}
    for names, gloss in zip(pairs[::2], pairs[1::2], strict=True):
        glosses |= dict.fromkeys(re.findall(r"\w+", names.replace(" and ", " ")), gloss.strip().rstrip("."))
    return about, glosses


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"map to {_type(values)}" if isinstance(values, dict) else "map"
    return str(schema.get("type", "any"))


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "commands.md": commands, "refusals.md": refusals, "metrics.md": metrics, "api.md": api,
}  # fmt: skip


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page().rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
