"""The versions that results depend on, here and on workers."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("openneutron", "torch", "executorch", "torchao", "ai-edge-litert", "numpy")


def installed() -> dict[str, str]:
    """Package and version; empty where it is not installed."""
    return {name: _version(name) for name in PACKAGES}


def differing(here: dict[str, str], there: dict[str, str]) -> str:
    """What differs, in words that name both; empty if nothing does."""
    differences = [
        f"{name} {there.get(name) or 'missing'} there, {version or 'missing'} here"
        for name, version in here.items()
        if (there.get(name) or "").split("+")[0] != version.split("+")[0]
    ]
    return "versions differ: " + "; ".join(differences) if differences else ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
