"""Every kernel of runtime/cpu_kernels gives the portable kernel's bits: here, and on the emulated cores."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from openneutron.firmware.build import runtime_folder
from openneutron.firmware.cores import CORES
from openneutron.firmware.operators import CPU_KERNELS, LIBRARIES, fast_operators
from openneutron.firmware.sources import Sources, wheel_folder
from tests.cpu_kernels.calls import CALLS, RANGES, Q
from tests.cpu_kernels.compare import HOST, TYPES, Call, build, out, run
from tests.firmware.whole import find_test_sources


@pytest.fixture(scope="module")
def sources() -> Sources:
    """ExecuTorch's source, or the tests are skipped."""
    return find_test_sources()


def random_calls(operator: str, count: int, seed: int = 0) -> list[Call]:
    """Calls of one operator; the same for the same seed."""
    rng = np.random.default_rng([seed, *operator.encode()])
    return [CALLS[operator](rng) for _ in range(count)]


def check(operator: str, calls: list[Call], outcomes: list) -> None:
    """No difference, and most calls are ours: else nothing was compared."""
    found = Counter(o.what for o in outcomes)
    wrong = next((c for c, o in zip(calls, outcomes, strict=True) if o.what not in ("equal", "failed")), None)
    assert wrong is None, f"{operator}: {dict(found)}; the first: {wrong}"
    taken = sum(not o.fell_back for o in outcomes)
    assert taken >= 0.5 * len(calls), f"{operator}: only {taken} of {len(calls)} calls are taken"


def test_the_calls_cover_every_kernel():
    assert set(CALLS) == fast_operators()


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
        assert theirs[entry.get("func") or entry["op"]].replace("torch::executor", "openneutron") == name
        assert re.search(rf"\b{name.split('::')[-1]}\b", code)


@pytest.mark.parametrize("operator", sorted(CALLS))
def test_equal_on_the_host(operator, sources, tmp_path):
    calls = random_calls(operator, 200)
    check(operator, calls, run(build(sources, HOST), calls, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("operator", sorted(CALLS))
def test_equal_on_the_host_many(operator, sources, tmp_path):
    calls = random_calls(operator, 10_000, seed=1)
    check(operator, calls, run(build(sources, HOST), calls, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("core", CORES.values(), ids=lambda core: core.name)
def test_equal_under_qemu(core, sources, tmp_path):
    image = build(sources, core)
    for operator in sorted(CALLS):
        calls = random_calls(operator, 100, seed=2)
        check(operator, calls, run(image, calls, tmp_path, core))


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
    [HOST, *(pytest.param(core, marks=pytest.mark.slow) for core in CORES.values())],
    ids=lambda core: core.name,
)
def test_quantize_every_upper_half_of_a_float(core, sources, tmp_path):
    calls = upper_halves()
    check("quantize", calls, run(build(sources, core), calls, tmp_path, core))
