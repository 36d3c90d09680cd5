"""Change the second replayer's rules one at a time, and report the changes that no case shows.

    PYTHONPATH=. python tests/replayer/mutations.py [--every N]

A mutant is the program with one comparison, operator, number, `min` or `max` changed, or one call dropped. It survives
if it behaves like the program in all cases (tests/support/replay_cases.py). A survivor is a rule that no case needs, or
the same rule in other words: `EQUIVALENT` lists those, by their line's text, with the reason.
"""

import argparse
import ast
import contextlib
import functools
import itertools
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
MODULES = ("market_rules", "replay")
"""In the order in which they import each other."""
SECONDS = 5.0
"""Of CPU time per case; a mutant that takes longer is seen."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil"}
EQUIVALENT: dict[tuple[str, str], str] = {
    ('_, due, disputed, _ = self.replaced.get(node, ("", 0, False, False))', "0 to 1 at 51"): "nothing is disputed",
    ('_, due, disputed, _ = self.replaced.get(node, ("", 0, False, False))', "0 to -1 at 51"): "nothing is disputed",
    ("first = before[0][1] if len(before) == 64 else 0", "0 to 1 at 47"): "no lease is that old",
    ("first = before[0][1] if len(before) == 64 else 0", "0 to -1 at 47"): "no lease is that old",
    ("first = before[0][1] if len(before) == 64 else 0", "1 to 0 at 18"): "the oldest interval is covered",
    ("count, total, error = len(one.rates), sum(one.rates), Fraction(1)", "1 to 2 at 63"): "from 20/41 on half is left",
    ("run = (chain or [root])[0].run", "0 to -1 at 24"): "all Roots are of one run",
    ("logs = [Map(id=chain[0].run, serial=0)]", "0 to -1 at 21"): "all Roots are of one run",
    ("self.plan, self.roots, self.begun_logs = Map(plan=0), dict[int, bytes](), [chain[0].run]", "0 to -1 at 81"):
        "all Roots are of one run",
    ("beacon = self.beacons.get(self.seq, sha256(self.chain[0].run + self.tip))", "0 to -1 at 54"):
        "all Roots are of one run",
    ('spec = opened((folder / "runspec").read_bytes(), "runspec", chain[0].run, chain[-1].roles.root)',
        "0 to -1 at 66"): "all Roots are of one run",
    ("for _ in range((self.seq & -self.seq).bit_length() - 1):", "BitAnd at 16"): "n | -n is -(n & -n)",
    ('one, rules = self.account(told.node), told.get("rules", 1)', "1 to 2 at 56"): "rules 1 and 2 count alike",
    ('one, rules = self.account(told.node), told.get("rules", 1)', "1 to 0 at 56"): "rules below 3 count alike",
    ("low, high, power = 0, ONE + 1, 1 << (32 * half - periods % half)", "0 to 1 at 19"): "a bound below every n(k)",
    ("low, high, power = 0, ONE + 1, 1 << (32 * half - periods % half)", "0 to -1 at 19"): "a bound below every n(k)",
    ("low, high, power = 0, ONE + 1, 1 << (32 * half - periods % half)", "1 to 2 at 28"): "a bound above every n(k)",
    ("until: int = 0", "0 to 1 at 13"): "an active node's, which nobody reads",
    ("until: int = 0", "0 to -1 at 13"): "an active node's, which nobody reads",
    ("plan = Map(told, payments=1, total=told.amount)", "1 to 2 at 26"): "nothing is left of its sum",
    ("return sum((2000 * (prompt + sum(one)) + 128) // 256 for one in turns)", "128 to 129 at 41"): "2000 n is even",
}  # fmt: skip
"""(text of the line, change with its column in it) -> why no case can show it."""


Choice = Callable[[int, str, str], bool]
"""(place among all mutants, text of the line, change) -> whether it is tried."""


class Mutant(NamedTuple):
    """A changed program. `line`: the text of the line that was changed."""

    module: str
    number: int
    line: str
    change: str
    code: types.CodeType


def left_out(tree: ast.AST) -> set[ast.AST]:
    """Return the nodes that decide nothing: annotations, what is said of a fault, and the command line."""
    apart = set[ast.AST]()
    for node in ast.walk(tree):
        roots: list[ast.AST | None] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("check", "Wrong"):
            roots += node.args[1 if node.func.id == "check" else 0 :]
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            roots.append(node)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("dict", "list", "set", "tuple", "Counter"):
            roots.append(node)
        apart |= {part for root in roots if root is not None for part in ast.walk(root)}
    return apart


def changes(tree: ast.Module) -> Iterator[tuple[Any, str]]:
    """Make each change in turn; yield its node and its name while it stands in the tree."""
    apart = left_out(tree)
    for node in ast.walk(tree):
        for place, one in enumerate(getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ()):
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call) and one not in apart:
                node.body[place] = ast.copy_location(ast.Pass(), one)  # type: ignore[attr-defined]
                yield one, "dropped"
                node.body[place] = one  # type: ignore[attr-defined]
        if node not in apart:
            yield from changes_of(node)


def changes_of(node: Any) -> Iterator[tuple[Any, str]]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            node.ops[place] = SWAPS[type(op)]()  # type: ignore[call-overload]
            yield node, f"{type(op).__name__} {place}"
            node.ops[place] = op
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        op = node.op
        node.op = SWAPS[type(op)]()  # type: ignore[assignment]
        yield node, type(op).__name__
        node.op = op
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
        for node.value in (value - 1, value + 1):
            yield node, f"{value} to {node.value}"
        node.value = value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        operand = node.operand
        node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), operand), node)
        yield node, "not"
        node.operand = operand
    elif isinstance(node, ast.Name) and node.id in NAMES:
        name = node.id
        node.id = NAMES[name]
        yield node, name
        node.id = name
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        name = node.attr
        node.attr = NAMES[name]
        yield node, name
        node.attr = name


@functools.cache
def sources() -> dict[str, str]:
    return {name: (HERE / f"{name}.py").read_text() for name in MODULES}


def every_mutant(count: int, first: int = 0) -> Choice:
    """Choose each `count`th mutant, from `first` on."""
    return lambda place, line, change: place % count == first


def mutants(chosen: Choice) -> Iterator[Mutant]:
    places = itertools.count()
    for module, text in sources().items():
        tree, lines = ast.parse(text), text.splitlines()
        for node, name in changes(tree):
            number, line = node.lineno, lines[node.lineno - 1].strip()
            change = f"{name} at {node.col_offset - lines[number - 1].index(line)}"
            if chosen(next(places), line, change):
                code = compile(ast.fix_missing_locations(tree), f"mutant of {module}", "exec")
                yield Mutant(module, number, line, change, code)


def load(mutant: Mutant | None = None) -> dict[str, types.ModuleType]:
    """Return the program's modules, one of them changed."""
    loaded, before = dict[str, types.ModuleType](), {name: sys.modules.get(name) for name in MODULES}
    try:
        for name, text in sources().items():
            sys.modules[name] = loaded[name] = types.ModuleType(name)
            code = mutant.code if mutant and mutant.module == name else compile(text, name, "exec")
            exec(code, loaded[name].__dict__)
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
    return loaded


class TooLong(BaseException):
    """A mutant does not end."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def survives(mutant: Mutant, cases: list[Any]) -> bool:
    """Tell whether a mutant behaves like the program in all cases. The case that shows it comes first from then on."""
    try:
        with limited():
            modules = load(mutant)
    except (Exception, TooLong):
        return False
    for place, case in enumerate(cases):
        try:
            with limited():
                same = case.same(modules["replay"])
        except (Exception, TooLong):
            same = False
        if not same:
            cases.insert(0, cases.pop(place))
            return False
    return True


def main() -> None:
    from tests.support.replay_cases import all_cases

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="try each Nth mutant alone")
    parser.add_argument("--first", type=int, default=0, help="begin with this one")
    told, started = parser.parse_args(), time.process_time()
    with all_cases(load) as cases:
        assert all(case.same(load()["replay"]) for case in cases), "the program itself"
        print(f"{len(cases)} cases made in {time.process_time() - started:.0f} s of CPU", flush=True)
        started, left, count = time.process_time(), 0, 0
        for one in mutants(every_mutant(told.every, told.first)):
            count += 1
            if (one.line, one.change) not in EQUIVALENT and survives(one, cases):
                left += 1
                print(f"{one.module}:{one.number}: {one.change}: {one.line}", flush=True)
    print(f"{count} mutants, {left} survive, beside {len(EQUIVALENT)} that are the same program; "
          f"{time.process_time() - started:.0f} s of CPU")  # fmt: skip


if __name__ == "__main__":
    main()
