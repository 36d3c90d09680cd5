"""Containerfile and compose.yaml against the code: commands, settings and files in them exist, nothing runs as root.

A build needs podman or docker, and gigabytes: docs/log/ has one.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_command

from echo2.coordinator.settings.config import CoordinatorConfig, from_assignments
from echo2.node.config import load_config
from echo2.runtime.installation import CONTAINER
from tests.support.paths import PACKAGES, ROOT

PROGRAMS = {"echo2-node": "echo2.node.cli", "echo2-coord": "echo2.coordinator.cli"}
COMPOSE = (ROOT / "compose.yaml").read_text()
EXAMPLE = re.sub(r"\\\n\s*", "", "\n".join(row for row in COMPOSE.splitlines() if not row.startswith("#")))


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return (instruction, rest) of each stage of the Containerfile, by its name, after those of its parent."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text())
    parts: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for row in text.splitlines():
        word, _, rest = row.partition(" ")
        if word == "FROM":
            parent, _, name = rest.split()
            parts[name] = list(parts.get(parent, []))
        elif name and word and not word.startswith("#"):
            parts[name].append((word, rest))
    return parts


def variables(image: str) -> dict[str, str]:
    rows = [shlex.split(rest) for word, rest in stages()[image] if word == "ENV"]
    return dict(assigned.partition("=")[::2] for row in rows for assigned in row)


@pytest.mark.parametrize("image", PROGRAMS)
def test_an_image_runs_its_program_as_another_user_than_root(image: str) -> None:
    steps = stages()[image]
    assert [rest for word, rest in steps if word == "USER"] == ["echo2"]
    assert [rest for word, rest in steps if word == "VOLUME"] == ["/data"]
    assert ("ENTRYPOINT", f'["{image}"]') in steps
    assert any(word == "HEALTHCHECK" and rest.endswith(f'["{image}", "status"]') for word, rest in steps)
    assert variables(image)[CONTAINER] == image
    last = next(place for place, (word, _) in enumerate(steps) if word == "USER")
    assert all(word != "RUN" for word, _ in steps[last:])
    assert not [rest for word, rest in steps if word == "RUN" and "gcc" in rest]


def test_the_variables_of_an_image_are_settings_that_its_program_knows() -> None:
    config, origins = load_config({}, variables("echo2-node"))
    assert (str(config.home), origins["home"]) == ("/data/node", "ECHO2_HOME")
    assert variables("echo2-coord")["ECHO2_COORD_HOME"] == "/data/run"


def test_the_last_stage_is_the_node_for_a_build_that_names_none() -> None:
    assert list(stages())[-1] == "echo2-node"


def test_the_context_of_a_build_has_what_the_wheel_is_built_from() -> None:
    rows = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {row[1:] for row in rows if row.startswith("!")}
    assert rows[1] == "*"
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert {*PACKAGES, "echo2", "plugins", "pyproject.toml", "hatch_build.py", "bundle_libp2p.py", "README.md"} <= kept
    assert not kept & {".git", ".venv", "tests", "docs"}


def test_the_image_of_the_coordinator_alone_has_the_rails_of_the_plug_in() -> None:
    (built,) = [rest for word, rest in stages()["wheel"] if word == "RUN" and "pip wheel" in rest]
    assert built.endswith("/source/plugins/echo2-rails")
    plugin = tomllib.loads((ROOT / "plugins/echo2-rails/pyproject.toml").read_text())["project"]
    installed = f"pip install --no-cache-dir --no-deps /wheel/{plugin['name'].replace('-', '_')}-*.whl"
    runs = {image: [rest for word, rest in stages()[image] if word == "RUN"] for image in PROGRAMS}
    assert [image for image in PROGRAMS if any(installed in rest for rest in runs[image])] == ["echo2-coord"]
    assert "/wheel/*.whl" not in str(runs), "pip takes extras of one wheel"


def commands() -> Iterator[list[str]]:
    """Yield the words of each command of ours in the example, the program's name first."""
    for found_in in re.split(r"\n|&&|\|\|| exec ", EXAMPLE):
        text = re.split(r" > ", found_in.strip().removeprefix("exec "))[0]
        if text.partition(" ")[0] in PROGRAMS:
            yield shlex.split(text)


def test_each_command_of_the_example_exists_with_its_options() -> None:
    tried = set()
    for program, name, *words in commands():
        tree: Any = get_command(import_module(PROGRAMS[program]).app)
        options = {option for parameter in tree.commands[name].params for option in parameter.opts}
        assert [word for word in words if word.startswith("--") and word not in options] == []
        tried.add((program, name))
    assert tried == {("echo2-coord", "init"), ("echo2-coord", "invite"), ("echo2-coord", "run"), ("echo2-node", "join")}


def test_the_settings_of_the_example_exist_and_keep_the_page_on_this_machine() -> None:
    (init,) = [words for words in commands() if words[1] == "init"]
    given = from_assignments([init[place + 1] for place, word in enumerate(init) if word == "--set"])
    config = CoordinatorConfig.model_validate(given)
    assert (config.network.mdns, config.network.advertise) == (False, ("/dns4/coordinator/tcp/4310",))
    assert re.findall(r'ports: \["(.*)"\]', EXAMPLE) == [f"127.0.0.1:{config.web.port}:{config.web.port}"]


def test_the_nodes_of_the_example_share_the_invite_with_the_coordinator_and_nothing_else() -> None:
    mounted = [row.split('", "') for row in re.findall(r'^ {4}volumes: \["(.*)"\]$', EXAMPLE, re.MULTILINE)]
    assert mounted == [
        ["coordinator:/data", "invite:/invite"], ["node-1:/data", "invite:/invite:ro"],
        ["node-2:/data", "invite:/invite:ro"],
    ]  # fmt: skip
    assert {row.partition(":")[0] for rows in mounted for row in rows} == set(
        re.findall(r"^  ([a-z0-9-]+):$", EXAMPLE.partition("\nvolumes:\n")[2], re.MULTILINE)
    )
