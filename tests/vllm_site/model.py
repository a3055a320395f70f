"""The small real model, made and registered for tests."""

import json

from inference.operations import register_model
from tests.inference import small_model

MODEL = "smollm2-135m-instruct"


def register() -> None:
    """Convert it if that has not been done, and make it known."""
    config = json.loads((small_model.folder() / "config.json").read_text())
    register_model(name=MODEL, engine="vllm", context_length=min(8192, config["max_position_embeddings"]))
