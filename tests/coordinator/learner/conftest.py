from pathlib import Path

import pytest

from tests.support.tiny_learner import make_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model folder, made once."""
    return make_model(tmp_path_factory.mktemp("model"))
