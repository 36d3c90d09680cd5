"""A tiny model folder, and the model in it, for the tests of the learner."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from echo2.coordinator.learner import model
from tests.support.tiny_learner import make_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model folder, made once."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def policy(model_folder: Path) -> PreTrainedModel:
    return model.load(model_folder, "cpu")
