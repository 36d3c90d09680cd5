"""The imports between our modules and rooms, read from their source: for the tests of the law, and the report."""

from functools import cache

from tests.support.paths import PLAYED, ROOT
from tests.support.sources import paths, source

MAY_IMPORT = {
    "runtime": set(),
    "p2p": {"runtime"},
    "weights": {"runtime"},
    "tasks": {"runtime"},
    "engines": {"runtime", "weights", "tasks"},
    "protocol": {"runtime", "p2p", "weights"},
    "ledger": {"runtime", "p2p", "protocol"},
    "coordinator": {"runtime", "p2p", "weights", "tasks", "engines", "protocol", "ledger"},
    "node": {"runtime", "p2p", "weights", "tasks", "engines", "protocol", "ledger"},
}


LAW = {**MAY_IMPORT, "benchmarks": MAY_IMPORT.keys() - {"node"}}
"""The same with the rooms of `benchmarks` that commands play."""


def modules() -> list[str]:
    """Every module of the nine packages and of the rooms that commands play, as a path from the root."""
    return python_files(*MAY_IMPORT, *PLAYED)


@cache
def python_files(*folders: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for folder in folders for path in paths(folder))


def imports(module: str) -> list[tuple[int, str]]:
    """(line, dotted name) of each absolute import of a module; `echo2.p2p.peer` as `p2p.peer`."""
    return [(lineno, name.removeprefix("echo2.")) for lineno, name in source(ROOT / module).imports]


def package(dotted: str) -> str:
    return dotted.partition(".")[0]


def room(module: str) -> str:
    """The room of a module: "package/folder", and the module itself where it stands directly in its package."""
    parts = module.removesuffix(".py").split("/")
    return "/".join(parts[:2])


@cache
def module_of(dotted: str) -> str | None:
    """The file of ours that holds an imported name; None: it is no name of the packages."""
    path = dotted.replace(".", "/")
    for name in (path, path.rpartition("/")[0]):
        if name and package(dotted) in LAW and (ROOT / f"{name}.py").exists():
            return f"{name}.py"
    return None


def imports_between_rooms() -> dict[tuple[str, str], list[str]]:
    """(importing room, imported room) -> the lines that import."""
    between: dict[tuple[str, str], list[str]] = {}
    for module in modules():
        for lineno, name in imports(module):
            target = module_of(name)
            if target is not None and room(target) != room(module):
                between.setdefault((room(module), room(target)), []).append(f"  {module}:{lineno}: imports {name}")
    return between


def closure(*starts: str) -> set[str]:
    """The modules of ours that an import of these loads, themselves included."""
    loaded, ahead = set(starts), list(starts)
    while ahead:
        new = {target for _, name in imports(ahead.pop()) if (target := module_of(name))} - loaded
        loaded |= new
        ahead += new
    return loaded


def floors(name: str) -> dict[str, int]:
    """Return the floor of each room of a package: one above the highest room of it that it imports."""
    below: dict[str, set[str]] = {}
    for importer, imported in imports_between_rooms():
        if importer.startswith(f"{name}/") and imported.startswith(f"{name}/"):
            below.setdefault(importer, set()).add(imported)
            below.setdefault(imported, set())

    @cache
    def floor(one: str) -> int:
        return 1 + max(map(floor, below[one]), default=0)

    return {one: floor(one) for one in sorted(below)}
