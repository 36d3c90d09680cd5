"""The documents against the code: names in README.md and docs/ exist, and every setting is documented.

The promises of a document are read from its code: fenced blocks and `inline spans`.

1. `echo2-node ...` and `echo2-coord ...`: the program's own parser takes the command, its options and their values.
2. `make X` is a target of the Makefile; `python -m benchmarks.X` is a module; an extra that is named is one of
   pyproject.toml, and docs/install.md lists each that users install.
3. A relative link reaches a file, and its #anchor a heading; a path in `backticks` that begins with a folder of ours
   exists, and so does a bare `module.py` behind one on the same line, in the same folder.
4. The settings tables of docs/reference and the config models name the same keys. A settings table is one whose
   first column is headed `Node key` or `Coordinator key`; each row's first cell is a key in backticks, nested keys
   with dots.

docs/adr/ and docs/log/ tell of their day, so only their links are checked.
"""

import importlib
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo2.runtime import installation
from tests.support.command_tree import PROGRAMS, command_tree, complaint
from tests.support.documents import FENCE, SPAN, code_lines, current_documents, documents
from tests.support.paths import ROOT

CONFIGS = {
    "Node key": ("echo2.node.config", "NodeConfig", "node-settings"),
    "Coordinator key": ("echo2.coordinator.settings.config", "CoordinatorConfig", "settings"),
}
SHELL_BREAK = re.compile(r"\s(?:\||\|\||&&|;|#|>|>>|2>|<|&)(?:\s|$)")
LINK = re.compile(r"!?\[(?:[^\]\\]|\\.)*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")


def commands(command_line: str) -> Iterator[list[str]]:
    """Yield the words of each echo2 command in a line of code, the program's name first."""
    for part in SHELL_BREAK.split(command_line):
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        for index, word in enumerate(words):
            name = word.rpartition("/")[2]
            if name in PROGRAMS:
                contained = words[:1] == ["podman"] and words[1] in {"run", "exec"}
                if contained or all("=" in word or word in {"sudo", "nohup", "exec", "env"} for word in words[:index]):
                    yield [name, *words[index + 1 :]]
                break


def promised_commands() -> list[tuple[str, list[str]]]:
    return [
        (str(path.relative_to(ROOT)), words)
        for path in current_documents()
        for text_line in code_lines(path.read_text())
        for words in commands(text_line)
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_in_the_documents_parses(program: str) -> None:
    tree = command_tree(program)
    promised = [(place, words) for place, words in promised_commands() if words[0] == program]
    wrong = [f"{place}: {' '.join(words)}: {why}" for place, words in promised if (why := complaint(words, tree))]
    assert not wrong, "\n".join(["", *wrong])


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = [
        f"{path.relative_to(ROOT)}: make {target}"
        for path in current_documents()
        for text_line in code_lines(path.read_text())
        for target in re.findall(r"(?:^|&& |; )make ([a-z][a-z0-9-]*)", text_line)
        if target not in targets
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_every_make_target_is_printed_by_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z0-9-]+):.*## \S", makefile, re.MULTILINE))
    assert phony == explained


def test_every_benchmark_in_the_documents_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: benchmarks.{name}"
        for path in current_documents()
        for text_line in code_lines(path.read_text())
        for name in re.findall(r"-m benchmarks\.(\w+(?:\.\w+)*)", text_line)
        if not any((ROOT / "benchmarks" / f"{name.replace('.', '/')}{end}").exists() for end in (".py", "/__main__.py"))
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_every_extra_in_the_documents_exists_and_users_find_each() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in current_documents()
        for listed in re.findall(r"\bextras? ((?:`[\w-]+`(?:, | and )?)+)", path.read_text())
        for name in re.findall(r"`([\w-]+)`", listed)
        if name not in extras
    ]
    assert not wrong, "\n".join(["", *wrong])
    (table,) = re.findall(r"\| extra \|.*?\n\n", (ROOT / "docs/install.md").read_text(), re.DOTALL)
    listed_there = {
        name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert listed_there == extras.keys() - {"dev", "docs"}


def anchors(path: Path) -> set[str]:
    """Return the anchors that a Markdown reader gives to the headings, as GitHub does."""
    headings = re.findall(r"^#{1,6}\s+(.*?)\s*#*$", FENCE.sub("", path.read_text()), re.MULTILINE)
    counts: dict[str, int] = {}
    for heading in headings:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, last in counts.items() for n in range(last + 1)}


def broken(path: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    reached = (path.parent / target).resolve() if target else path
    if not reached.exists() or not reached.is_relative_to(ROOT):
        return True
    return bool(anchor) and reached.suffix == ".md" and anchor not in anchors(reached)


def test_every_relative_link_resolves() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in documents()
        for link in LINK.findall(SPAN.sub("", FENCE.sub("", path.read_text())))
        if not re.match(r"[a-z]+:", link) and broken(path, link)
    ]
    assert not wrong, "\n".join(["", *wrong])


OURS = (
    "benchmarks",
    "coordinator",
    "docs",
    "engines",
    "ledger",
    "node",
    "p2p",
    "plugins",
    "protocol",
    "runtime",
    "tasks",
    "tests",
    "weights",
)


def named_paths(text: str) -> Iterator[str]:
    """Yield each path of ours that a document names in a code span; NAME stands for a name of the reader's choice."""
    for text_line in FENCE.sub("", text).splitlines():
        folder = ""
        for span in SPAN.findall(text_line):
            if re.fullmatch(r"[\w/.-]+(?:\.\w+|/)", span) and span.partition("/")[0] in OURS and "NAME" not in span:
                folder = span.rpartition("/")[0]
                yield span
            elif folder and re.fullmatch(r"\w+\.py", span):
                yield f"{folder}/{span}"


@pytest.mark.parametrize("path", current_documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_of_ours_in_a_document_exists(path: Path) -> None:
    assert [named for named in named_paths(path.read_text()) if not (ROOT / named).exists()] == []


def documented_keys(text: str, heading: str) -> set[str]:
    """Return the keys of all settings tables under the column `heading`."""
    keys: set[str] = set()
    inside = False
    for text_line in text.splitlines():
        first = text_line.split("|")[1].strip() if text_line.startswith("|") else ""
        if not text_line.startswith("|") or first == heading:
            inside = first == heading
        elif inside and not set(first) <= set(":- "):
            keys |= set(re.findall(r"`([\w.]+)`", first))
    return keys


def model_keys(model: Any, prefix: str = "") -> set[str]:
    """Return the keys of a pydantic model, those of a nested model with dots."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        nested = hasattr(field.annotation, "model_fields")
        keys |= model_keys(field.annotation, key + ".") if nested else {key}
    return keys


@pytest.mark.parametrize("heading", CONFIGS)
def test_the_settings_tables_name_exactly_the_settings(heading: str) -> None:
    module, model, page = CONFIGS[heading]
    keys = model_keys(getattr(importlib.import_module(module), model))
    documented = documented_keys((ROOT / f"docs/reference/{page}.md").read_text(), heading)
    assert keys - documented == set(), f"settings that {page}.md does not name"
    assert documented - keys == set(), f"keys in {page}.md that are not settings"


def an_app() -> Any:
    import typer
    import typer.main

    app, receipts = typer.Typer(), typer.Typer()

    @app.command()
    def join(invite: str, gpu: str = "auto", port: int = 0, dry_run: bool = False) -> None: ...

    @receipts.command("list")
    def listing() -> None: ...

    @receipts.command()
    def verify(strict: bool = False) -> None: ...

    app.add_typer(receipts, name="receipts")
    return typer.main.get_command(app)


@pytest.mark.parametrize(
    ("command_line", "expected"),
    [
        ("echo2-node join --gpu auto <invite>", None),
        ("echo2-node join INVITE --no-dry-run", None),
        ("echo2-node join --gpu=auto", None),
        ("ECHO2_INVITE=x .venv/bin/echo2-node join | tee log --strange", None),
        ("echo2-node receipts list|verify", None),
        ("echo2-node receipts verify --strict", None),
        ("echo2-node receipts", None),
        ("echo2-node --help", None),
        ("echo2-node fold", "no command fold"),
        ("echo2-node receipts show", "no command show"),
        ("echo2-node receipts list|show", "no command show"),
        ("echo2-node join INVITE --port", None),
        ("echo2-node join INVITE --port many", "Input should be a valid integer"),
        ("echo2-node join INVITE --port PORT", None),
        ("echo2-node join INVITE another", "an argument too many: another"),
        ("echo2-node join --gpus 2", "No such option: --gpus"),
        ("echo2-node receipts list --strict", "No such option: --strict"),
        ("podman run -d --name node -v node:/data echo2-node join INVITE --gpus 2", "No such option: --gpus"),
    ],
)
def test_a_command_line_is_judged_as_the_program_would(command_line: str, expected: str | None) -> None:
    (words,) = commands(command_line)
    wrong = complaint(words, an_app())
    assert wrong == expected or (wrong and expected and wrong.startswith(expected))


@pytest.mark.parametrize("command_line", ["apt install echo2-node", "import echo2", "man echo2-node | less"])
def test_what_is_no_echo2_command_is_left_alone(command_line: str) -> None:
    assert list(commands(command_line)) == []


def test_a_settings_table_is_read_by_its_first_column() -> None:
    settings = "| Node key | Default |\n|---|---|\n| `gpu` | auto |\n| `caps.upload` | 0 |\n"
    text = settings + "\n| Other | x |\n|---|---|\n| `no` | 1 |\n"
    assert documented_keys(text, "Node key") == {"gpu", "caps.upload"}


def test_no_message_or_page_prints_a_command_that_fetches_the_bare_name_from_an_index() -> None:
    """A stranger could have registered it (runtime/installation.py, rule 3). Records of the past keep their words."""
    assert not installation.IS_PUBLISHED, "after the release this test goes"
    fetching = re.compile(
        r"\b(?:pip3?|uv|pipx|uvx)\b[^\n`|&;#]*?(?:\binstall|\binject|\brun|\badd|\buvx)\b"
        r"[^\n`|&;#]*?[\s'\"](echo2)(?=[\s'\"`\[=<>~,.;:)]|$)(?!\S* @ )", re.MULTILINE
    )  # fmt: skip
    for text in (
        "pip install echo2",
        "uv tool install --python 3.11 echo2",
        "pip install 'echo2[gym]'",
        "pipx run echo2 x",
    ):
        assert fetching.search(text), text
    for text in ("pip install .", "uv tool install 'echo2[gym] @ git+https://a/echo2'", "pipx inject echo2-tools x"):
        assert not fetching.search(text), text
    read = (".py", ".md", ".html", ".js", ".yaml", ".yml", ".toml", "Makefile")
    past = ("docs/log/", "docs/adr/", "tests/", "CHANGELOG.md")
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    wrong = [
        f"{name}: {match[0].strip()}"
        for name in names
        if not name.startswith(past) and name.endswith(read)
        for match in fetching.finditer((ROOT / name).read_text(errors="replace"))
    ]
    assert wrong == []
