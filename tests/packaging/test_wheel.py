"""The wheel, installed where there is no compiler: it compiles a model, runs and reports the program."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def call(*command, cwd, **environment):
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow  # a wheel is built and installed
@pytest.mark.skipif(sysconfig.get_platform() != "linux-x86_64", reason="the wheel is for Linux on x86-64")
def test_the_wheel_works_without_a_compiler(tmp_path):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        f"--config-settings=build-dir={tmp_path / 'build'}",
    ]
    call(*pip, "wheel", *build, "-w", tmp_path / "plain", ROOT, cwd=tmp_path, PATH=path)
    (plain,) = (tmp_path / "plain").glob("*.whl")
    repair = ["repair", "--plat", "manylinux_2_28_x86_64", "--only-plat", "--exclude", "libexecutorch*"]
    call(BIN / "auditwheel", *repair, "-w", tmp_path / "dist", plain, cwd=tmp_path, PATH=path)
    (wheel,) = (tmp_path / "dist").glob("openneutron-*-py3-none-manylinux_2_28_x86_64.whl")
    assert wheel.stat().st_size < 5_000_000  # 1.8 million are the language model's weights

    # The packages of this environment, but not its editable openneutron: what a .pth file names is
    # searched for modules, not for .pth files.
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    packages = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    call(*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", packages, wheel, cwd=tmp_path)
    (packages / "others.pth").write_text(str(Path(np.__file__).parents[1]))
    where = call(python, "-c", "import openneutron; print(openneutron.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(packages)

    (tmp_path / "empty").mkdir()
    tool = [python, "-m", "openneutron"]
    alone = {"cwd": tmp_path, "PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    call(*tool, "compile", "dscnn", "--calibration-samples", 4, "-o", "d.pte", "--report", "d.html", **alone)
    assert "float32[1, 12]" in call(*tool, "run", "d.pte", **alone)
    assert "openneutron" in call(*tool, "--version", **alone)
    assert (tmp_path / "d.html").stat().st_size > 50_000
