"""A volunteer's settings: what stands where."""

import pytest

from node.config import load_config


@pytest.mark.parametrize(
    ("flags", "environ"),
    {
        "an empty flag": ({"listen": [""]}, {}),
        "an empty variable": ({}, {"ECHO2_LISTEN": ""}),
    }.values(),
)
def test_a_node_may_listen_nowhere(flags: dict[str, object], environ: dict[str, str]) -> None:
    config, origins = load_config(flags, {"ECHO2_CONFIG": "/nowhere/node.toml", **environ})
    assert config.listen == ()
    assert origins["listen"] != "default"
