"""What cannot be built is said before anything is built."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware import check
from openneutron.firmware.check import check_whole
from openneutron.firmware.core_check import check_core
from openneutron.firmware.cores import CORES, find_firmware_core
from openneutron.firmware.sources import find_sources, git_commands, source_place, wheel_folder
from tests.firmware.whole import compiled

M33 = CORES["cortex-m33"]
FILES = (
    "schema/program.fbs",
    "schema/scalar_type.fbs",
    "kernels/portable/functions.yaml",
    "kernels/quantized/quantized.yaml",
    "backends/cortex_m/ops/operators.yaml",
)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A folder with what is compared of a source."""
    for name in FILES:
        file = tmp_path / "clone" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((wheel_folder() / name).read_bytes())
    for name in ("runtime/executor/program.cpp", "codegen/templates/RegisterCodegenUnboxedKernels.cpp"):
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / name).touch()
    (tmp_path / "clone/version.txt").write_text("1.4.0\n")
    return tmp_path / "clone"


def test_no_source(monkeypatch):
    monkeypatch.delenv("EXECUTORCH_SOURCE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/nowhere")
    with pytest.raises(
        OpenNeutronError, match=r"ON707.*neither --executorch-source nor EXECUTORCH_SOURCE"
    ) as caught:
        find_sources(needs_cmsis_nn=False)
    assert git_commands()[0] in caught.value.diagnostic.hint


def test_sources_in_the_users_own_place(tree, tmp_path, monkeypatch, capsys):
    """A folder before a tarball, the variable before the place, an option before both."""
    for name in ("EXECUTORCH_SOURCE", "CMSIS_NN_SOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    place = tmp_path / "data/openneutron/sources"
    assert source_place("EXECUTORCH_SOURCE") is None
    assert main(["firmware", "--sources"]) == 1
    out = capsys.readouterr().out
    assert all(command in out for command in git_commands()) and str(place) in out
    place.mkdir(parents=True)
    (place / "executorch-1.5.1.tar.xz").touch()
    (place / "executorch-notes.txt").touch()
    assert source_place("EXECUTORCH_SOURCE") == place / "executorch-1.5.1.tar.xz"
    tree.rename(place / "executorch")
    assert find_sources(needs_cmsis_nn=False).executorch == (place / "executorch").resolve()
    monkeypatch.setenv("EXECUTORCH_SOURCE", str(tmp_path))
    assert source_place("EXECUTORCH_SOURCE") == tmp_path
    assert find_sources(place / "executorch", needs_cmsis_nn=False).executorch == place / "executorch"


def test_a_source_that_fits_and_one_of_another_version(tree, tmp_path):
    assert find_sources(tree, needs_cmsis_nn=False).executorch == tree
    file = tree / FILES[0]
    file.write_text(file.read_text() + "\n")
    with pytest.raises(OpenNeutronError, match=r"ON708.*schema/program.fbs") as caught:
        find_sources(tree, needs_cmsis_nn=False)
    assert "1.5.1" in caught.value.diagnostic.hint and "1.4.0" in caught.value.diagnostic.hint
    file.unlink()
    with pytest.raises(OpenNeutronError, match=r"ON708.*has no schema/program.fbs"):
        find_sources(tree, needs_cmsis_nn=False)


def test_what_is_no_source(tree, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENNEUTRON_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "source.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tree, "executorch-1.5.1")
    assert find_sources(archive, needs_cmsis_nn=False).executorch.name == "executorch-1.5.1"
    (tmp_path / "broken.tar.xz").write_bytes(b"no archive")
    (tmp_path / "empty").mkdir()
    wrong = {
        "broken.tar.xz": "cannot be unpacked",
        "empty": "is no source of ExecuTorch",
        "none": "no such folder",
    }
    for name, what in wrong.items():
        with pytest.raises(OpenNeutronError, match=f"ON707.*{what}"):
            find_sources(tmp_path / name, needs_cmsis_nn=False)
    with pytest.raises(OpenNeutronError, match=r"ON707.*is no source of CMSIS-NN"):
        find_sources(tree, tmp_path / "empty")


def test_a_program_for_another_core():
    for core, other in (("cortex-m33", "cortex-m55"), ("cortex-m55", "cortex-m33")):
        program = compiled("argmax_head", "cortex-m", core)
        check_core(program.data, core, "net")
        with pytest.raises(OpenNeutronError, match=f"ON710.*compiled for {core}") as caught:
            check_core(program.data, other, "net")
        assert f"--core {other}" in caught.value.diagnostic.hint
    with pytest.raises(OpenNeutronError, match="ON112"):
        find_firmware_core("cortex-m4")


def test_too_little_sram_missing_tools_and_kernels(monkeypatch):
    program = compiled("middle", "imxrt700")
    with pytest.raises(OpenNeutronError, match=r"ON703.*there are 1,000 of SRAM"):
        check_whole(program, M33, sram_bytes=1000)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OpenNeutronError, match=r"ON701.*arm-none-eabi-gcc") as caught:
        check_whole(program, M33)
    assert "libstdc++-arm-none-eabi-newlib" in caught.value.diagnostic.hint
    monkeypatch.setattr(check, "wheel_operators", lambda: {"aten::add.out"})
    with pytest.raises(OpenNeutronError, match=r"ON709.*aten::atan.out"):
        check_whole(program, M33)
