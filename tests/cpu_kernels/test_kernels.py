"""Every kernel of runtime/cpu_kernels gives the portable kernel's bits: here, and on the emulated cores."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.estimate.cpu_cost import _FAST, _FAST_FLOAT, _FAST_INT8, Operator, are_floats
from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import CORES
from openneutron.firmware.operators import CPU_KERNELS, LIBRARIES, fast_operators
from openneutron.firmware.sources import Sources, wheel_folder
from openneutron.firmware.toolchain import PREFIX, Processor, digest_of, run_tool
from openneutron.firmware.whole import build_whole, read_whole_program
from openneutron.firmware.whole_run import random_runs, run_whole
from openneutron.models import build_model
from openneutron.pipeline import compile_model
from tests.cpu_kernels.calls import CALLS, RANGES, Q, in_place, of_other_types
from tests.cpu_kernels.compare import HOST, TYPES, Call, build, out, run
from tests.firmware.whole import find_test_sources


@pytest.fixture(scope="module")
def sources() -> Sources:
    """ExecuTorch's source, or the tests are skipped."""
    return find_test_sources()


def random_calls(operator: str, count: int, seed: int = 0) -> list[Call]:
    """Calls of one operator, the same for the same seed; every fourth over an input where that may be."""
    rng = np.random.default_rng([seed, *operator.encode()])
    calls = [CALLS[operator](rng) for _ in range(count)]
    return [in_place(rng, call) if i % 4 == 3 else call for i, call in enumerate(calls)]


def odd_calls(operator: str, count: int, seed: int = 0) -> list[Call]:
    """Calls of one operator with any types and orders of dimensions."""
    rng = np.random.default_rng([seed, 1, *operator.encode()])
    return [of_other_types(rng, CALLS[operator](rng)) for _ in range(count)]


# With Helium the dialect's own kernels, in vectors, stay; with an FPU for double precision GELU does.
KEPT_ON_M55 = ("cortex_m::quantize", "cortex_m::dequantize", "aten::gelu")


def check(operator: str, calls: list[Call], outcomes: list, core: Processor = HOST) -> None:
    """No difference, and most calls are ours: else nothing was compared."""
    found = Counter(o.what for o in outcomes)
    wrong = next((c for c, o in zip(calls, outcomes, strict=True) if o.what not in ("equal", "failed")), None)
    assert wrong is None, f"{operator}: {dict(found)}; the first: {wrong}"
    taken = sum(not o.fell_back for o in outcomes)
    if core.name == "cortex-m55" and operator.startswith(KEPT_ON_M55):
        assert taken == 0
        return
    assert taken >= 0.5 * len(calls), f"{operator}: only {taken} of {len(calls)} calls are taken"


def test_the_calls_cover_every_kernel():
    assert set(CALLS) == fast_operators()


def test_the_table_of_gelu_is_what_the_tool_prints():
    tool = Path(__file__).parents[2] / "tools/gelu_table.py"
    printed = subprocess.run([sys.executable, tool], check=True, capture_output=True, text=True).stdout
    assert (runtime_folder() / "cpu_kernels/gelu_table.h").read_text() == printed


@pytest.mark.parametrize("library", CPU_KERNELS, ids=lambda library: library.name)
def test_the_lists_are_those_of_executorch_with_our_kernels(library):
    import yaml

    root = runtime_folder() / "cpu_kernels"
    theirs = {}
    for known in LIBRARIES:
        for entry in yaml.safe_load((wheel_folder() / known.list).read_text()):
            theirs[entry.get("func") or entry["op"]] = entry["kernels"][0]["kernel_name"]
    code = "".join(file.read_text() for file in (root / library.folder).glob("adapt_*.cpp"))
    for entry in yaml.safe_load((root / library.list).read_text()) or ():
        name = entry["kernels"][0]["kernel_name"]
        own = theirs[entry.get("func") or entry["op"]].removeprefix("torch::executor::")
        assert name == f"openneutron::{own}"
        assert re.search(rf"\b{name.split('::')[-1]}\b", code)


def test_the_cost_model_knows_every_kernel():
    known = {Operator(op, (), ()).base for op in fast_operators()}
    assert all(Operator(op, (), ()).fast for op in fast_operators())
    assert set(_FAST) | set(_FAST_FLOAT) | set(_FAST_INT8) == known
    assert not Operator("aten::add.out", (), (), is_float=False).fast  # integers go to the portable kernel
    assert (
        are_floats(["bool", "float32"]) and not are_floats(["bool"]) and not are_floats(["float32", "int64"])
    )


def test_cifarnet_takes_less_than_half_the_cycles_of_the_portable_kernels():
    module, inputs = build_model("cifarnet"), (torch.zeros(1, 3, 32, 32),)
    summary = compile_model(module, inputs, calibration=[inputs], verify=False).summary()
    assert summary["cycles_portable_kernels"] > 2.3 * summary["cycles_estimated"] > 0


def test_the_image_links_our_kernels_and_only_those_of_the_program(sources, tmp_path):
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1))
    program = read_whole_program(
        compile_model(module, (torch.zeros(1, 8),), delegate=False, verify=False).pte
    )
    ours = build_whole(program, tmp_path / "ours", sources)
    portable = build_whole(program, tmp_path / "portable", sources, portable=True)
    names = {part.name for part in ours.size.parts}
    assert {"adapt_elementwise", "elementwise", "adapt_reduce", "reduce", "op_relu", "op_softmax"} <= names
    assert not names & {"adapt_quantize", "quantize", "product", "op_add"}
    assert not {"adapt_elementwise", "reduce"} & {part.name for part in portable.size.parts}
    assert sum(part.data + part.bss for part in ours.size.parts) == sum(
        part.data + part.bss for part in portable.size.parts
    )
    runs = random_runs(program, 2)
    first, second = run_whole(ours, runs), run_whole(portable, runs)
    for method, samples in first.outputs.items():
        for sample, other in zip(samples, second.outputs[method], strict=True):
            for a, b in zip(sample, other, strict=True):
                assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("toolchain", ["", "arm-none-eabi.cmake"], ids=["host", "cortex-m33"])
def test_the_folder_stands_alone(toolchain, sources, tmp_path):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    folder, build_folder = tmp_path / "cpu_kernels", tmp_path / "build"
    shutil.copytree(runtime_folder() / "cpu_kernels", folder)
    configure = [cmake, "-S", folder, "-B", build_folder, f"-DEXECUTORCH_SOURCE={sources.executorch}"]
    if toolchain:
        core = " ".join(CORES["cortex-m33"].flags)
        configure += [f"-DCMAKE_TOOLCHAIN_FILE={runtime_folder() / 'firmware' / toolchain}",
                      f"-DCMAKE_C_FLAGS={core}", f"-DCMAKE_CXX_FLAGS={core} -fno-exceptions"]  # fmt: skip
    subprocess.run([str(c) for c in configure], check=True, capture_output=True)
    done = subprocess.run([cmake, "--build", str(build_folder), "-j2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    libraries = [build_folder / name for name in ("libcpu_kernels.a", "libcpu_kernels_loops.a")]
    assert all(library.exists() for library in libraries)
    if not toolchain:
        tested = subprocess.run([build_folder / "loops"], capture_output=True, text=True)
        assert tested.returncode == 0, tested.stdout
        return
    for library in libraries:
        symbols = subprocess.check_output([f"{PREFIX}nm", library], text=True).splitlines()
        defined = [line.split()[1:] for line in symbols if len(line.split()) == 3]
        assert not [name for kind, name in defined if kind in "bBcCdDsS"]  # no globals that are written
        wanted = {line.split()[1] for line in symbols if line.split()[:1] == ["U"]}
        assert not wanted & {"malloc", "calloc", "realloc", "_Znwj", "_Znaj"}  # no heap
        if "loops" in library.name:
            assert not {
                name for name in wanted if re.match(r"__aeabi_(d|\w+2d$)", name)
            }  # no double precision


@pytest.mark.parametrize("operator", sorted(CALLS))
def test_equal_on_the_host(operator, sources, tmp_path):
    calls = random_calls(operator, 200)
    check(operator, calls, run(build(sources, HOST), calls, tmp_path))


@pytest.mark.parametrize("operator", sorted(CALLS))
def test_other_types_are_equal_on_the_host(operator, sources, tmp_path):
    calls = odd_calls(operator, 200)
    outcomes = run(build(sources, HOST), calls, tmp_path)
    found = Counter(o.what for o in outcomes)
    wrong = [c for c, o in zip(calls, outcomes, strict=True) if o.what not in ("equal", "failed")]
    assert not wrong, f"{operator}: {dict(found)}; the first: {wrong[0]}"
    assert found["equal"] > 0


@pytest.mark.slow  # ten thousand calls an operator
@pytest.mark.parametrize("operator", sorted(CALLS))
def test_equal_on_the_host_many(operator, sources, tmp_path):
    calls = random_calls(operator, 10_000, seed=1)
    check(operator, calls, run(build(sources, HOST), calls, tmp_path))


@pytest.mark.slow  # an image is built and run under QEMU
@pytest.mark.parametrize("core", CORES.values(), ids=lambda core: core.name)
def test_equal_under_qemu(core, sources, tmp_path):
    image = build(sources, core)
    for operator in sorted(CALLS):
        calls = random_calls(operator, 100, seed=2)
        check(operator, calls, run(image, calls, tmp_path, core), core)


def upper_halves() -> list[Call]:
    """quantize_per_tensor of floats with every upper half there is, and several lower ones."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    calls = []
    for lower in (0, 1, 0x7FFF, 0x8000, 0xFFFF):
        values = (upper | lower).view("float32")
        for dtype, (low, high) in RANGES.items():
            for scale, zero in ((0.5, 3), (0.0123, -5), (1.0, 0), (1e-39, 1), (3e38, 0), (2.0**-24, 100)):
                arguments = (values, scale, zero, low, high, TYPES[dtype], out(values.shape, dtype))
                calls.append(Call(Q + "quantize_per_tensor.out", arguments))
    return calls


@pytest.mark.parametrize(
    "core",
    # Slow: 65,536 values under QEMU.
    [HOST, *(pytest.param(core, marks=pytest.mark.slow) for core in CORES.values())],
    ids=lambda core: core.name,
)
def test_quantize_every_upper_half_of_a_float(core, sources, tmp_path):
    calls = upper_halves()
    check("quantize", calls, run(build(sources, core), calls, tmp_path, core))


FUNCTIONS = ("exponential.h", "tests/exponential.c")
ALL_COMPARED = "c5f6be4a485f8f3b"
"""The digest of FUNCTIONS with which all floats were compared, on an emulated Cortex-M33 with newlib 3.3."""


def functions_digest() -> str:
    return digest_of(runtime_folder() / "cpu_kernels" / name for name in FUNCTIONS)[:16]


def every_float() -> int:
    """1 if the code is another than the one with which all floats were compared: that takes ten minutes."""
    is_known = functions_digest() == ALL_COMPARED
    return 13 if is_known and os.environ.get("OPENNEUTRON_EVERY_FLOAT") != "1" else 1


def test_every_float_was_compared_with_this_code():
    """The slow tests below have done it when they pass; then this digest is noted."""
    assert functions_digest() == ALL_COMPARED


@pytest.mark.parametrize(
    ("first", "last", "step", "function"),
    [
        (0x80000000, 0xFFFFFFFF, 4001, "EXP"),
        (0x00000000, 0x7FFFFFFF, 4001, "EXP"),
        (0x00000000, 0xFFFFFFFF, 8009, "TANH"),
        # Slow: from -86 to -2^-28, what a softmax makes of anything.
        pytest.param(0xB1800000, 0xC2AC0000, every_float(), "EXP", marks=pytest.mark.slow),
        # As long: from 2^-28 to 86; from 2^-12 to 24.
        pytest.param(0x31800000, 0x42AC0000, every_float(), "EXP", marks=pytest.mark.slow),
        pytest.param(0x39800000, 0x41C00000, every_float(), "TANH", marks=pytest.mark.slow),
    ],
)
def test_the_functions_are_the_c_librarys(first, last, step, function, tmp_path):
    core, runtime = CORES["cortex-m33"], runtime_folder()
    if shutil.which(f"{PREFIX}gcc") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("the cross compiler or QEMU is not installed")
    firmware, own = runtime / "firmware", runtime / "cpu_kernels"
    files = (own / "tests/exponential.c", firmware / "board.c", firmware / "semihosting.c")
    run_tool([f"{PREFIX}gcc", *core.flags, "-O2", "-ffp-contract=off", "-fno-math-errno", f"-DFIRST={first}u",
              f"-DLAST={last}u", f"-DSTEP={step}", f"-D{function}", f"-I{own}", f"-I{firmware}", *files,
              "-nostartfiles", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments", f"-L{firmware}",
              "-Wl,--defsym=__stack_bytes=8192", "-T", firmware / core.script, "-lm", "-o",
              tmp_path / "image"])  # fmt: skip
    # Without counting instructions, which QEMU takes twice the time for.
    machine = core.machine[: core.machine.index("-icount")]
    command = ["qemu-system-arm", *machine, "-kernel", str(tmp_path / "image")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert f"{(last - first) // step + 1} values, 0 differ" in done.stdout + done.stderr
