"""Whole programs in ExecuTorch's runtime on an emulated microcontroller: the host's outputs, exact pools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import CORES
from openneutron.firmware.export import export_program
from openneutron.firmware.pools import WholePools
from openneutron.firmware.whole import build_whole, measuring_pools, read_whole_program, with_pools
from openneutron.firmware.whole_run import compare_runs, host_runs, random_runs, run_whole
from openneutron.options import CompileOptions
from openneutron.pipeline import compile_model
from openneutron.report.sidecar import report_of_program
from tests.firmware.whole import build_measured, compiled, run_and_compare, samples
from tests.recipes.networks import NETWORKS
from tests.unplanned import unplanned_program

pytestmark = pytest.mark.firmware
slow = pytest.mark.slow  # images with ExecuTorch's runtime are built and run under QEMU
# A part of `python -m tests.firmware.matrix`, chosen so that every library of kernels is in it.
PROGRAMS = (
    ("middle", "imxrt700", "cortex-m33"),
    ("argmax_head", "neutron", "cortex-m33"),
    ("ratio", "imxrt700", "cortex-m33"),
    pytest.param("dscnn", "cortex-m", "cortex-m33", marks=slow),
    pytest.param("embedding_start", "imxrt700", "cortex-m33", marks=slow),
    pytest.param("dscnn", "cortex-m", "cortex-m55", marks=slow),
)


@pytest.mark.parametrize(("name", "recipe", "core"), PROGRAMS)
def test_outputs_are_the_hosts(sources, tmp_path, name, recipe, core):
    program = compiled(name, recipe, core)
    firmware = build_measured(program, tmp_path, sources, core)
    run, found = run_and_compare(firmware, samples(NETWORKS[name]))
    assert found.values > 0 and found.worst < 1e-6
    names = [step.operator for step in run.steps]
    assert names == list(program.info.methods["forward"].instructions)
    assert all(
        step.instructions > 0 for step in run.steps if step.operator != "executorch_prim::et_view.default"
    )
    delegates = [step for step in run.steps if step.operator == "NeutronBackend"]
    assert all(step.kernels and 0 < step.border < step.instructions for step in delegates)
    assert set(firmware.size.kernels) == {k.name for p in program.delegates for k in p.kernels}
    groups = {group.group for group in firmware.size.groups}
    assert {"ExecuTorch core", "application", "CPU kernel"} <= groups
    assert not {"malloc", "_malloc_r", "printf"} & _symbols(firmware.image) - {"malloc"}


class TwoIn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Conv2d(2, 4, 3), torch.nn.Linear(5, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x, y = torch.relu(self.a(x)), self.b(y)
        return x + y[:, :, None, None], x, y


class OneIn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x)


def test_two_methods_several_inputs_and_outputs(sources, tmp_path):
    inputs = {"first": (torch.randn(1, 2, 6, 6), torch.randn(1, 5)), "second": (torch.randn(1, 3, 8, 8),)}
    made = compile_model(
        {"first": TwoIn().eval(), "second": OneIn().eval()},
        inputs,
        calibration={k: [v] for k, v in inputs.items()},
    )
    program = read_whole_program(made.pte)
    assert [len(m.outputs) for m in program.info.methods.values()] == [3, 1]
    firmware = build_measured(program, tmp_path, sources)
    run, found = run_and_compare(firmware)
    assert found.equal == found.values and {step.method for step in run.steps} == {"first", "second"}


def _small(**options: object) -> bytes:
    layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 16, 3))
    torch.manual_seed(0)
    network, inputs = torch.nn.Sequential(*layers).eval(), (torch.randn(1, 3, 16, 16),)
    int8_io = bool(options.pop("int8_io", False))
    made = compile_model(
        network, inputs, calibration=[inputs], int8_io=int8_io, options=CompileOptions(**options)
    )
    return made.pte


@pytest.mark.parametrize(
    "options", [{"int8_io": True}, {"fetch_constants_to_sram": True}, {"optimise": "size"}], ids=str
)
def test_int8_inputs_prefetch_and_size_mode(sources, tmp_path, options):
    program = read_whole_program(_small(**options))
    firmware = build_measured(program, tmp_path, sources)
    _, found = run_and_compare(firmware)
    assert found.equal == found.values
    if "int8_io" in options:
        assert not program.operators and program.info.methods["forward"].inputs[0].dtype == "int8"
    if "fetch_constants_to_sram" in options:
        assert any(p.prefetch_bytes for p in program.delegates)
    if "optimise" in options:  # the input is read into the arena, the output is there, and both are planned
        (delegate,), method = program.delegates, program.info.methods["forward"]
        assert all(d.place for d in (*delegate.inputs, *delegate.outputs))
        assert method.reserve_bytes == method.planned_bytes <= firmware.pools.planned
        assert firmware.pools.temporary < delegate.scratch_bytes


def test_prefetched_weights_are_closed_to_all_but_the_copy(sources, tmp_path):
    """The same protection, on a program whose kernels read weights where they lie, faults."""
    program = read_whole_program(_small())
    firmware = build_whole(
        program, tmp_path, sources, defines=("-DFIRMWARE_CLOSE_WEIGHTS(model)=((model)!=nullptr)",)
    )
    with pytest.raises(OpenNeutronError, match="fault access to weights in flash"):
        run_whole(firmware, random_runs(program, 1))


@pytest.mark.parametrize("pool", ["method", "planned", "temporary", "io", "stack"])
def test_one_byte_less_fails_with_the_name_of_the_pool(sources, tmp_path, pool):
    program = unplanned_program() if pool == "io" else _small()
    firmware = build_measured(read_whole_program(program), tmp_path, sources)
    run_and_compare(firmware)
    less = 8 if pool == "stack" else 1  # a stack is aligned to 8 bytes
    smaller = with_pools(firmware, replace(firmware.pools, **{pool: getattr(firmware.pools, pool) - less}))
    with pytest.raises(OpenNeutronError, match=f"NEUTRON_{pool.upper()}_BYTES is too small"):
        run_whole(smaller, random_runs(firmware.program, 1))


def test_memory_is_reserved_for_ports_that_the_program_plans_none_for():
    planned, unplanned = (read_whole_program(p).info for p in (_small(), unplanned_program()))
    assert WholePools.known(planned).io == 0
    (method,) = unplanned.methods.values()
    assert WholePools.known(unplanned).io == method.io_bytes


def test_a_program_that_nearly_fills_the_sram_is_measured_or_refused_with_the_sum():
    program, core = read_whole_program(_small()), CORES["cortex-m33"]
    known = program.known_bytes
    for more in (24, 100, 4000):
        chip = replace(core, sram_bytes=known + more * 1024)
        pools = measuring_pools(program, chip)
        assert pools.total < chip.sram_bytes and min(pools.method, pools.stack) >= 2048
    with pytest.raises(
        OpenNeutronError, match=f"ON703.*needs {known:,} bytes of SRAM, .* at least 20,480 more"
    ):
        measuring_pools(program, replace(core, sram_bytes=known + 16 * 1024))


def test_a_difference_is_reported(sources):
    program = compiled("middle", "imxrt700")
    host = host_runs(program, samples(NETWORKS["middle"], 1))
    other = {"forward": [[array.copy() for array in run] for run in host["forward"]]}
    other["forward"][0][0].reshape(-1)[2] += 1e-3
    with pytest.raises(OpenNeutronError, match=r"ON705.*forward, run 0, output 0: 1 of 5 values"):
        compare_runs(program, other, host)


def test_the_command_writes_counts_and_pools(sources, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my net, v1.pte").write_bytes(compiled("middle", "imxrt700").data)
    for i, array in enumerate(samples(NETWORKS["middle"], 1)["forward"][0]):
        np.save(f"{i}.npy", array)
    assert main(["firmware", "my net, v1.pte", "--run", "--input", "0.npy", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["run"]["equal"] == data["run"]["values"] == 5
    assert data["pools"]["planned"] > 0 and data["run"]["instructions"]["forward"] > 0
    folder = Path("my net, v1_firmware")
    assert f"NEUTRON_STACK_BYTES {data['pools']['stack']}u" in (folder / "neutron_pools.h").read_text()
    steps = json.loads((folder / "counts.json").read_text())["steps"]
    assert steps == data["run"]["steps"]
    assert sum(step["instructions"] for step in steps) == data["run"]["instructions"]["forward"]
    assert all(step["estimated_cycles"] > 0 for step in steps if "et_view" not in step["operator"])
    assert report_of_program(Path("my net, v1.pte"))["counts"]["core"] == "cortex-m33"
    total = data["sram_bytes"]
    assert main(["firmware", "my net, v1.pte", "--sram", str(total)]) == 0
    assert main(["firmware", "my net, v1.pte", "--sram", str(total - 1)]) == 1
    assert f"needs {total:,} bytes of SRAM" in capfd.readouterr().err


def test_smallest_is_bare_where_nothing_is_outside_the_delegates(sources, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.pte").write_bytes(_small(int8_io=True))
    assert main(["firmware", "a.pte", "--smallest", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["text_bytes"] < 25_000 and len(data["kernels"]) < 6


@slow
def test_the_export_is_built_by_cmake_and_runs(sources, tmp_path):
    """As a user would: CMake, a cross compiler, start-up code and a linker script of their own."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    firmware = build_measured(compiled("middle", "imxrt700"), tmp_path / "image", sources)
    folder, board = tmp_path / "export", runtime_folder() / "firmware"
    export_program(firmware, folder, sources)
    assert not any(
        "semihosting" in f.read_text() for f in folder.rglob("*") if f.suffix in (".cpp", ".h", ".txt")
    )
    assert len((folder / "main.cpp").read_text().split("int main() {")[1].splitlines()) <= 22
    sources_list = ";".join(str(board / name) for name in ("board.c", "semihosting.c"))
    options = {
        "CMAKE_TOOLCHAIN_FILE": board / "arm-none-eabi.cmake",
        "EXECUTORCH_SOURCE": sources.executorch,
        "CMSIS_NN_SOURCE": sources.cmsis_nn,
        "NEUTRON_LINKER_SCRIPT": board / "mps2-an505.ld",
        "NEUTRON_BOARD_SOURCES": sources_list,
        "NEUTRON_LINK_OPTIONS": f"-nostartfiles;-L{board};--specs=nosys.specs;-Wl,--defsym=end=__sram_end",
    }
    configure = [cmake, "-S", folder, "-B", tmp_path / "b", *(f"-D{k}={v}" for k, v in options.items())]
    subprocess.run([str(c) for c in configure], check=True, capture_output=True, text=True)
    build = subprocess.run([cmake, "--build", str(tmp_path / "b"), "-j2"], capture_output=True, text=True)
    assert build.returncode == 0, build.stdout[-2000:] + build.stderr[-2000:]
    emulator = ["qemu-system-arm", *CORES["cortex-m33"].machine, "-kernel", "app.elf"]
    assert subprocess.run(emulator, cwd=tmp_path / "b", timeout=120).returncode == 0
    text = subprocess.run(["arm-none-eabi-size", tmp_path / "b" / "app.elf"], capture_output=True, text=True)
    assert int(text.stdout.splitlines()[1].split()[0]) < firmware.size.text + len(firmware.program.data)


def _symbols(image: Path) -> set[str]:
    listing = subprocess.run(["arm-none-eabi-nm", image], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listing.stdout.splitlines()}
