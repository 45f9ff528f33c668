"""Examples, run from the repository root."""
