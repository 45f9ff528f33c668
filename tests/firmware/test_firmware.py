"""Delegates as firmware on an emulated Cortex-M: the host's bytes, only the kernels that are needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openneutron.cli import main
from openneutron.compiler.microcode.format import Kernel
from openneutron.converter.kernel_selection import kernel_selection_code
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.emulator import compare, given_inputs, random_inputs, run_firmware, run_host
from openneutron.firmware.sizes import read_map
from openneutron.run.native import NativeModel
from tests.firmware.programs import compiled, program, run_and_compare
from tests.native import build as build_host

pytestmark = pytest.mark.firmware
ROOT = Path(__file__).resolve().parents[2]
slow = pytest.mark.slow  # images are built and run under QEMU
NETWORKS = (
    "cifarnet",
    "dscnn",
    "resnet8",
    "two_parts",
    "mlperf_tiny_ic_resnet8_int8.tflite",
    "mlperf_tiny_kws_dscnn_int8.tflite",
    pytest.param("mobilenet_v2_small", marks=slow),
    pytest.param("tiny_vit", marks=slow),
)


@pytest.mark.parametrize("name", NETWORKS)
def test_selected_kernels_give_the_hosts_bytes(build, name):
    firmware = build(program(name), *compiled(name).kernel_selections)
    assert set(firmware.size.kernels) == {kernel.name for kernel in program(name).kernels}
    run = run_and_compare(firmware)
    assert {count.kernel for count in run.counts} == set(firmware.size.kernels)
    assert all(count.instructions > 0 for count in run.counts if count.kernel != "WAIT")
    assert run.stack_bytes < 4096


@pytest.mark.parametrize(
    ("name", "prefetch"),
    [
        ("cifarnet", False),
        ("mlperf_tiny_ic_resnet8_int8.tflite", True),
        pytest.param("mlperf_tiny_kws_dscnn_int8.tflite", False, marks=slow),
    ],
)
def test_cascades_give_the_hosts_bytes(build, name, prefetch):
    """In stripes of rows, forwards and backwards; also with weights that are copied in."""
    small = compiled(name, prefetch, None, "size")
    firmware = build(program(name, prefetch, None, "size"), *small.kernel_selections)
    assert "CASCADE" in firmware.size.kernels
    assert small.scratch_bytes < compiled(name).scratch_bytes
    run = run_and_compare(firmware)
    assert {count.kernel for count in run.counts} == set(firmware.size.kernels)
    assert run.stack_bytes < 5120


def test_without_a_selection_all_kernels_are_linked(build):
    firmware = build(program("two_parts"))
    assert len(firmware.size.kernels) == len(
        {source.stem for source in (ROOT / "runtime/kernels").glob("*.c")}
    )
    run_and_compare(firmware)


def test_cifarnet_needs_a_third_of_the_kernel_code(build):
    code = compiled("cifarnet").kernel_selections[0]
    selected, everything = build(program("cifarnet"), code), build(program("cifarnet"))
    assert selected.size.kernel_text <= 0.35 * everything.size.kernel_text


def test_two_delegates_share_one_selection_and_the_pools(build):
    two = program("two_parts")
    assert len(two.delegates) == 2 and len(compiled("two_parts").kernel_selections) == 1
    assert any("atan" in operator for operator in two.cpu_operators)
    assert two.pools.scratch == max(d.program.scratch_bytes for d in two.delegates)
    header = two.pools_header()
    assert f"NEUTRON_SCRATCH_BYTES {two.pools.scratch}u" in header
    assert f"NEUTRON_EXECUTORCH_PLANNED_BYTES {compiled('two_parts').planned_bytes}u" in header


def test_a_library_that_is_linked_whole_is_thinned_too(build):
    """As Zephyr links it: the weak table is in the link, yields to the strong one and is dropped."""
    firmware = build(program("cifarnet"), *compiled("cifarnet").kernel_selections)
    own = [o for o in firmware.objects if o.name.startswith("application__")]
    library = firmware.folder / "libneutron.a"
    subprocess.run(["arm-none-eabi-ar", "rcs", library, *(set(firmware.objects) - set(own))], check=True)
    objects = [*own, "-Wl,--whole-archive", library, "-Wl,--no-whole-archive"]
    place, core = ROOT / "runtime/firmware", firmware.core
    link = ("-nostartfiles", "-Wl,--gc-sections", "-Wl,-Map=whole.map", f"-L{place}", "-T", core.script)
    command = ["arm-none-eabi-gcc", *core.flags, *link, *objects, "-o", "whole.elf"]
    subprocess.run([str(c) for c in command], cwd=firmware.folder, check=True)
    assert read_map(firmware.folder / "whole.map").kernels == firmware.size.kernels


def test_one_merged_selection_runs_two_models(build, tmp_path):
    names = ("cifarnet", "dscnn")
    for name in names:
        compiled(name).save(tmp_path / f"{name}.pte")
    files = [str(tmp_path / f"{name}_kernel_selection.c") for name in names]
    assert main(["merge-kernels", "-o", str(tmp_path / "merged.c"), *files]) == 0
    again = [str(tmp_path / f"{name}.pte") for name in names]  # the same, from the programs themselves
    assert main(["merge-kernels", "-o", str(tmp_path / "again.c"), *again]) == 0
    merged = (tmp_path / "merged.c").read_text()
    assert merged == (tmp_path / "again.c").read_text()
    for name in names:
        firmware = build(program(name), merged)
        assert set(firmware.size.kernels) == {k.name for n in names for k in program(n).kernels}
        run_and_compare(firmware)


def test_a_kernel_that_is_not_linked_is_named_by_prepare_on_the_target(build):
    what = program("cifarnet")
    firmware = build(what, kernel_selection_code(what.kernels - {Kernel.SOFTMAX}, what.converter))
    with pytest.raises(OpenNeutronError, match=r"ON704.*prepare.*not linked.*kernel SOFTMAX"):
        run_firmware(firmware, random_inputs(what))


def test_a_kernel_that_is_not_linked_is_named_by_prepare_on_the_host(tmp_path):
    what = program("cifarnet")
    selection = tmp_path / "selection.c"
    selection.write_text(kernel_selection_code(what.kernels - {Kernel.SOFTMAX}, what.converter))
    library = build_host("libneutron_selected.so", "-O1", "-fPIC", "-shared", extra=(selection,))
    delegate = what.delegates[0]
    with pytest.raises(OpenNeutronError, match=r"not linked.*kernel SOFTMAX"):
        NativeModel(delegate.microcode, delegate.weights, library=library)


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("cifarnet", 80 * 1024),
        ("mlperf_tiny_ic_resnet8_int8.tflite", 90 * 1024),
        pytest.param("mobilenet_v2_small", 250 * 1024, marks=slow),
    ],
)
def test_prefetched_weights_are_read_by_the_copy_callback_only(build, name, budget):
    """The flash is closed to all but the callback, and the pools keep to the SRAM the compiler was given."""
    what = program(name, prefetch=True, sram=budget)
    assert 0 < what.pools.prefetch < len(what.delegates[0].weights)
    assert what.pools.scratch + what.pools.prefetch <= budget
    firmware = build(what)
    run_and_compare(firmware)


def test_the_flash_is_really_closed(build):
    """A program whose kernels read weights where they lie faults when they may not."""
    what = program("cifarnet")
    firmware = build(what, defines=("-DFIRMWARE_CLOSE_WEIGHTS(model)=((model)!=NULL)",))
    with pytest.raises(OpenNeutronError, match="fault access to weights in flash"):
        run_firmware(firmware, random_inputs(what))


def test_damaged_weights_are_found_on_the_target(build):
    firmware = build(program("two_parts"))
    raw = bytearray(firmware.image.read_bytes())
    at = raw.index(firmware.program.delegates[0].weights)
    raw[at] ^= 1
    firmware.image.write_bytes(raw)
    with pytest.raises(OpenNeutronError, match="weights are damaged"):
        run_firmware(firmware, random_inputs(firmware.program))


def test_a_difference_from_the_host_is_reported():
    what = program("two_parts")
    host = run_host(what, random_inputs(what))
    other = [[array.copy() for array in arrays] for arrays in host]
    other[1][0].reshape(-1)[3] ^= 1
    with pytest.raises(OpenNeutronError, match=r"ON705.*delegate 1, output 0.*1 of \d+ bytes"):
        compare(what, other, host)


def test_too_little_sram_is_refused_before_building(build):
    with pytest.raises(OpenNeutronError, match=r"ON703.*needs [\d,]+ bytes of SRAM \(scratch"):
        build(program("cifarnet"), sram_bytes=40_000)


def test_the_image_has_no_heap_and_no_stdio(build):
    firmware = build(program("cifarnet"))
    listing = subprocess.run(["arm-none-eabi-nm", firmware.image], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    assert not names & {"malloc", "_malloc_r", "free", "_sbrk", "printf", "_impure_ptr"}
    assert all(part.data == 0 for part in firmware.size.parts)
    assert all(part.bss == 0 for part in firmware.size.parts if part.group != "application")


def test_missing_tools_say_what_to_install(build, monkeypatch):
    firmware = build(program("two_parts"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OpenNeutronError, match=r"ON701.*arm-none-eabi-gcc") as caught:
        build(program("two_parts"))
    assert "apt-get install gcc-arm-none-eabi" in caught.value.diagnostic.hint
    with pytest.raises(OpenNeutronError, match=r"ON701.*qemu-system-arm"):
        run_firmware(firmware, random_inputs(firmware.program))


def test_inputs_that_do_not_fit_are_refused():
    what = program("cifarnet")
    (good,) = random_inputs(what)[0]
    assert given_inputs(what, [good])[0][0] is good
    for arrays in ([], [good, good], [good.astype(np.float32)], [good[:, :2]]):
        with pytest.raises(OpenNeutronError, match=r"ON514"):
            given_inputs(what, arrays)


def test_the_command(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compiled("two_parts").save("my net, v1.pte")
    for i, array in enumerate(a for arrays in random_inputs(program("two_parts"), 5) for a in arrays):
        np.save(f"{i}.npy", array)
    options = (
        "--kernel-selection",
        "my net, v1_kernel_selection.c",
        "--run",
        "--input",
        "0.npy",
        "--input",
        "1.npy",
    )
    options = ("--bare", *options)
    assert main(["firmware", "my net, v1.pte", *options, "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert data["run"]["equal_bytes"] > 0 and data["run"]["instructions"] > 0
    assert data["kernels"] == sorted(data["kernels"]) and Path(data["image"]).exists()
    assert (tmp_path / "my net, v1_firmware" / "neutron_pools.h").exists()
    assert main(["firmware", "my net, v1.pte", *options]) == 0
    text = capfd.readouterr().out
    assert "runs the program's 2 delegate(s) only" in text and "aten::atan.out" in text
    assert "equal the host simulator's" in text


def test_a_program_without_delegates_is_refused(tmp_path, capfd):
    import torch

    from openneutron.pipeline import compile_model

    compile_model(torch.nn.ReLU(), (torch.randn(1, 4),)).save(tmp_path / "cpu.pte")
    assert main(["firmware", str(tmp_path / "cpu.pte"), "--bare", "-o", str(tmp_path)]) == 1
    assert "ON706" in capfd.readouterr().err


@slow
def test_cmake_builds_the_same(build, tmp_path):
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    firmware = build(program("two_parts"))
    folder = tmp_path / "cmake"
    configure = [cmake, "-S", ROOT / "runtime/firmware", "--preset", "cortex-m33", "-B", folder]
    subprocess.run([*configure, f"-DNEUTRON_PROGRAM_DIR={firmware.folder}"], check=True, capture_output=True)
    subprocess.run([cmake, "--build", folder], check=True, capture_output=True)
    shutil.copy(folder / "neutron_firmware.elf", firmware.image)
    run_and_compare(firmware)
