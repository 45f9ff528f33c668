"""Exit 0 if all that the installed build of torch asks for is installed; else name it, and exit 1."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement


def missing() -> list[str]:
    """The requirements of torch that are not met."""
    found = []
    for requirement in map(Requirement, requires("torch") or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            met = requirement.specifier.contains(version(requirement.name), prereleases=True)
        except PackageNotFoundError:
            met = False
        if not met:
            found.append(str(requirement))
    return found


if __name__ == "__main__":
    print("\n".join(missing()))
    sys.exit(1 if missing() else 0)
