"""Load modules of `benchmarks/`, which a checkout of echo2 has beside its packages and the wheel leaves out.

Rules
1. A checkout is the folder above `echo2/`, where its pyproject.toml is echo2's and `benchmarks/` lies in it. Anywhere
   else a command that needs one is refused in one sentence, before it has changed anything.
2. `benchmarks` is loaded from that folder by its path. A package of the same name in the current folder, on PYTHONPATH
   or in the installation is never run.
3. A child process loads it in the same way: `checkout_command` names this module, which calls the other's `main`.
"""

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Final

from echo2.runtime.errors import LocalFault
from echo2.runtime.python_command import module_command

BENCHMARKS: Final = "benchmarks"
_LOADER: Final = "echo2.runtime.checkout"


def checkout_of(package: Path) -> Path | None:
    """Return the checkout to which the folder `echo2/` belongs; None: it was installed from a wheel."""
    root = package.parent
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return root if project == "echo2" and (root / BENCHMARKS / "__init__.py").is_file() else None


def load_from_checkout(module: str, command: str) -> ModuleType:
    """Return a module of `benchmarks`. `command`: command of the user that needs it. Raises `LocalFault`."""
    # Not resolved: the packages are links in a checkout, and `echo2/` is the folder that holds them.
    root = checkout_of(Path(__file__).absolute().parents[1])
    if root is None:
        raise LocalFault(
            f"`{command}` needs a checkout of echo2, since the wheel leaves {BENCHMARKS}/ out: run `make setup` in a "
            f"checkout, then `.venv/bin/{command}` there"
        )
    _load_package(root / BENCHMARKS)
    return importlib.import_module(module)


def checkout_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module of `benchmarks` in a process of its own."""
    return module_command(_LOADER, module, *arguments)


def _load_package(folder: Path) -> None:
    """Make `benchmarks` the package of this folder (rule 2)."""
    file = folder / "__init__.py"
    if (known := sys.modules.get(BENCHMARKS)) is not None:
        if known.__file__ is None or Path(known.__file__).resolve() != file.resolve():
            raise LocalFault(f"another package named {BENCHMARKS} was loaded from {known.__file__}: uninstall it")
        return
    spec = importlib.util.spec_from_file_location(BENCHMARKS, file, submodule_search_locations=[str(folder)])
    assert spec is not None, "a path that ends with .py has a loader"
    assert spec.loader is not None
    sys.modules[BENCHMARKS] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


def main() -> None:
    """Run `main` of the module that the first argument names, with the arguments after it."""
    del sys.argv[0]
    load_from_checkout(sys.argv[0], f"python -m {sys.argv[0]}").main()


if __name__ == "__main__":
    main()
