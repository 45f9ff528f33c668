"""Print the folder of the executorch package to build against: the installed one, else the pinned wheel's.

pip builds in an environment of its own, where what is installed cannot be imported; in an empty environment
nothing is installed yet. The wheel is fetched without its dependencies: only headers and libraries are used.
"""

import importlib.util
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path


def main(pyproject: Path, cache: Path) -> None:
    """Print the folder; the wheel is unpacked to `cache` if nothing is installed."""
    spec = importlib.util.find_spec("executorch")
    found = [Path(next(iter(spec.submodule_search_locations)))] if spec else []
    found += [Path(sysconfig.get_path(name)) / "executorch" for name in ("platlib", "purelib")]
    for folder in [*found, cache / "executorch"]:
        if (folder / "lib" / "libexecutorch.so").exists():
            print(folder)
            return
    wanted = re.search(r'"(executorch==[^"]+)"', pyproject.read_text()).group(1)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "-d", str(cache), wanted], check=True, stdout=sys.stderr)
    with zipfile.ZipFile(next(cache.glob("executorch-*.whl"))) as wheel:
        wheel.extractall(cache)
    print(cache / "executorch")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
