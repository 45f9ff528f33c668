"""The import contract of the compiler names every module: one that is missing could import anything."""

from __future__ import annotations

from pathlib import Path

from openneutron.compat import tomllib

ROOT = Path(__file__).parents[2]


def test_every_module_is_in_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [c for c in contracts if "compiler" in c["name"]]
    named = {module.strip() for layer in contract["layers"] for module in layer.split("|")}
    folder = ROOT / "src" / "openneutron" / "compiler"
    files = [f.relative_to(ROOT / "src") for f in folder.rglob("*.py") if f.name != "__init__.py"]
    assert named == {".".join(f.with_suffix("").parts) for f in files}
