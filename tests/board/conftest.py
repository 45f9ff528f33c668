"""Progress would stand before the messages, and `--quiet` must not outlive a test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """No progress on stderr."""
    monkeypatch.setenv("OPENNEUTRON_QUIET", "1")
