"""Print the house report: `make report`. A report to look at, never a gate; it exits with 0.

For the packages and the benchmarks: modules above 400 lines, functions above 40, constructors of more than 7
parameters, public docstrings whose first line opens with no verb, places that serve earlier builds, and blocks of six
lines or more that stand twice. For the documents: words, and forms of language that only become fewer.
"""

import ast
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.support import words
from tests.support.import_graph import closure, floors
from tests.support.lease_walk import walk_of_lease_request
from tests.support.paths import ROOT

PACKAGES = ("runtime", "protocol", "p2p", "ledger", "weights", "tasks", "engines", "node", "coordinator", "benchmarks")
MODULE_LINES = 400
FUNCTION_LINES = 40
PARAMETERS = 7
SAME_LINES = 6

COMPATIBILITY = (
    r"(older|earlier) (programs?|builds?|files?|coordinators?|nodes?)|"
    r"(older|earlier) versions? (of this program|signed|took|stored|wrote|has)|"
    r"[Oo]f (one of )?an earlier (version|program)( [0-9]|$|')|[Aa]n earlier program|(Files|[Ss]teps|records) of older|"
    r"older than (this|that|the) (field|kinds)|(since|before|of) schema [0-9]|setting has moved"
)
"""Places that serve earlier builds of echo2, of the sources and of docs/protocol: `git grep -E` takes it too."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

NO_VERB = """
a an the this these what who whom whose whoever where when why how if whether by with from for of in on at to as only
each every all any both no one two its it nobody somebody nothing everything everybody some seconds bytes milliseconds
"""
"""First words that are no imperative verb."""


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Yield (path from the root, source, tree) of each module, in order."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text()
            yield str(path.relative_to(ROOT)), source, ast.parse(source)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (qualified name, definition) of each function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        if isinstance(node, Function | ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from functions(node, prefix)


def length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: Function) -> int:
    """Count the parameters of a method, without `self`."""
    arguments = node.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def lacks_verb(text: str) -> bool:
    """Tell whether a docstring's first word is surely no verb: an article, a question word .."""
    first = re.match(r"\W*(\w+)", text)
    return first is not None and first[1].lower() in NO_VERB.split()


def docstrings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (name, line, text) of the docstrings of public functions; properties and classes name a thing."""
    for name, node in functions(tree):
        text = ast.get_docstring(node)
        described = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        if text and not described and not any(part.startswith("_") for part in name.split(".")):
            yield name, node.lineno, text


def import_lines(source: str) -> set[int]:
    """Return the numbers of the lines of import statements."""
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))
    return {number for node in imports for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def twice(sources: dict[str, str]) -> list[str]:
    """Find blocks of `SAME_LINES` meaningful lines that stand at two places, the longest stretch of each told once. An
    import statement is none."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, source in sources.items():
        imported = import_lines(source)
        lines = [(number, text_line.strip()) for number, text_line in enumerate(source.splitlines(), 1)]
        lines = [
            (n, text_line)
            for n, text_line in lines
            if len(text_line) > 3 and n not in imported and not text_line.startswith(("#", '"""'))
        ]
        for at in range(len(lines) - SAME_LINES + 1):
            block = tuple(text_line for _, text_line in lines[at : at + SAME_LINES])
            places[block].append((name, lines[at][0]))
    told: list[str] = []
    last: dict[tuple[str, ...], tuple[int, ...]] = {}
    for spots in places.values():
        if len(spots) < 2:
            continue
        names, numbers = tuple(name for name, _ in spots), tuple(number for _, number in spots)
        before = last.get(names)
        last[names] = numbers
        if before is None or any(now - then > 2 for now, then in zip(numbers, before, strict=True)):
            told.append(" = ".join(f"{name}:{number}" for name, number in spots))
    return told


def compatibility() -> list[str]:
    """Return the places that serve earlier builds, as `path:line: text`."""
    paths = [path for package in PACKAGES[:-1] for path in sorted((ROOT / package).rglob("*.py"))]
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {text_line.strip()}"
        for path in [*paths, *sorted((ROOT / "docs" / "protocol").glob("*.md"))]
        for number, text_line in enumerate(path.read_text().splitlines(), 1)
        if re.search(COMPATIBILITY, text_line)
    ]
    return lines


def show(title: str, rows: list[str]) -> None:
    print(f"\n{title}: {len(rows)}")
    for row in rows:
        print(f"  {row}")


def late_assignments(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of other objects that constructors assign, and their own that begin as a lambda: a port that
    is wired later than the object is made."""
    for made in (node for _, node in functions(tree) if node.name == "__init__"):
        for node in ast.walk(made):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            for target in targets:
                own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
                if isinstance(target, ast.Attribute) and (not own or isinstance(node.value, ast.Lambda)):
                    yield ast.unparse(target)


def house() -> Iterator[str]:
    """Yield the figures of the house: how much of it a reader must know."""
    for package in (*PACKAGES, "plugins", "tests"):
        files = [path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts]
        folder, most = Counter(path.parent.relative_to(ROOT) for path in files).most_common(1)[0]
        size = sum(len(path.read_text().splitlines()) for path in files)
        yield f"{package}: {size} lines in {len(files)} modules, {most} of them in {folder}"
    rooms = floors("coordinator")
    yield f"coordinator: {len(rooms)} rooms on {max(rooms.values())} floors"
    yield f"an audit of the ledger loads {len(closure('ledger/ledger_audit.py'))} modules"
    with tempfile.TemporaryDirectory() as folder:
        walk = walk_of_lease_request(Path(folder))
    yield (
        f"lease request: {len(walk.path)} functions, {len(walk.rooms)} rooms, {walk.returns} returns lead to the "
        f"signed lease; {len(walk.run)} functions of {len(walk.visited)} rooms run"
    )
    late = sum(len([*late_assignments(tree)]) for path, _, tree in modules() if path.startswith("coordinator/"))
    yield f"ports of the coordinator that are wired late: {late}"


def main() -> None:
    """Print the report."""
    sources, long, wide, tall, mute, sizes, lengths = {}, [], [], [], [], [], []
    for path, source, tree in modules():
        sources[path] = source
        sizes.append(len(source.splitlines()))
        if sizes[-1] > MODULE_LINES:
            tall.append(f"{path}: {sizes[-1]} lines")
        for name, node in functions(tree):
            lengths.append(length(node))
            if length(node) > FUNCTION_LINES:
                long.append(f"{path}:{node.lineno}: {name}, {length(node)} lines")
            if node.name == "__init__" and parameters(node) > PARAMETERS:
                wide.append(f"{path}:{node.lineno}: {name}, {parameters(node)} parameters")
        mute += [
            f"{path}:{text_line}: {name}: {text.splitlines()[0]}"
            for name, text_line, text in docstrings(tree)
            if lacks_verb(text)
        ]
    print(f"{len(sizes)} modules, median {median(sizes):.0f} lines, largest {max(sizes)}")
    print(f"{len(lengths)} functions, median {median(lengths):.0f} lines, largest {max(lengths)}")
    show("The house", [*house()])
    show("Words of the documents", [f"{kind}: {number}" for kind, number in words.counted().items()])
    show("Pages above 2,000 words", [f"{name}: {number}" for name, number in words.pages_above(2_000).items()])
    show("Counted forms in the documents", [f"{form}: {number}" for form, number in words.forms().items()])
    show(f"Modules above {MODULE_LINES} lines", tall)
    show(f"Functions above {FUNCTION_LINES} lines", long)
    show(f"Constructors of more than {PARAMETERS} parameters", wide)
    show("Public docstrings that open with no verb", mute)
    show("Places that serve earlier builds", compatibility())
    show(f"Blocks of {SAME_LINES} lines that stand twice", twice(sources))


if __name__ == "__main__":
    main()
