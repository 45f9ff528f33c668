"""The model zoo. Importing this costs nothing: torch is imported when a model is built."""

from openneutron.models.zoo import ZOO, ZooEntry, build_model, example_inputs, find_model

__all__ = ["ZOO", "ZooEntry", "build_model", "example_inputs", "find_model"]
