"""Threads share the work of a run and never change its result."""

from __future__ import annotations

import ctypes
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.emit.result import CompiledGraph
from openneutron.compiler.microcode import format as mc
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.ir import Builtin, Graph, Padding, Quant, Tensor
from openneutron.litert.reference import run_reference
from openneutron.options import CompileOptions
from openneutron.run import native
from openneutron.run.native import NativeModel
from openneutron.run.threads import thread_count
from openneutron.targets.table import find_target

RNG = np.random.default_rng(5)


def _quant() -> Quant:
    return Quant.per_tensor(float(RNG.uniform(0.02, 0.1)), int(RNG.integers(-20, 20)))


def _conv(b: Builder, x: Tensor, channels: int, kernel: int, stride: int) -> Tensor:
    """A SAME convolution; 0 channels: depthwise."""
    n, h, w, c = x.shape
    shape = (channels, kernel, kernel, c) if channels else (1, kernel, kernel, c)
    weights = b.const(RNG.integers(-127, 128, shape).astype(np.int8), Quant.per_tensor(0.01))
    assert x.quant is not None
    bias = RNG.integers(-2000, 2000, channels or c).astype(np.int32)
    options = {"padding": int(Padding.SAME), "strideH": stride, "strideW": stride, "dilationHFactor": 1,
               "dilationWFactor": 1, "fusedActivationFunction": 0}  # fmt: skip
    if not channels:
        options["depthMultiplier"] = 1
    kind = Builtin.CONV_2D if channels else Builtin.DEPTHWISE_CONV_2D
    operands = [x, weights, b.const(bias, Quant.per_tensor(x.quant.scale[0] * 0.01))]
    out = (n, -(-h // stride), -(-w // stride), channels or c)
    return b.op(kind, operands, out, _quant(), options=options)


def _network() -> Graph:
    """Every kernel that is split, large enough to be."""
    b = Builder()
    x = b.input("x", (1, 33, 29, 3), quant=_quant())
    y = _conv(b, x, 32, 3, 1)
    z = _conv(b, _conv(b, y, 0, 3, 1), 32, 1, 1)
    y = b.op(Builtin.ADD, [y, z], y.shape, _quant(), options={"fusedActivationFunction": 0})
    y = b.op(Builtin.MUL, [y, z], y.shape, _quant(), options={"fusedActivationFunction": 0})
    y = _conv(b, _conv(b, y, 0, 3, 2), 48, 3, 1)
    pool = {"padding": int(Padding.SAME), "strideH": 1, "strideW": 1, "filterHeight": 3, "filterWidth": 3,
            "fusedActivationFunction": 0}  # fmt: skip
    y = b.op(Builtin.MAX_POOL_2D, [y], y.shape, y.quant, options=pool)
    y = b.op(Builtin.AVERAGE_POOL_2D, [y], y.shape, y.quant, options=pool)
    flat = b.reshape(y, (1, y.elements))
    assert flat.quant is not None
    weights = b.const(RNG.integers(-127, 128, (101, flat.shape[1])).astype(np.int8), Quant.per_tensor(0.01))
    bias = b.const(RNG.integers(-99, 99, 101).astype(np.int32), Quant.per_tensor(flat.quant.scale[0] * 0.01))
    options = {"fusedActivationFunction": 0, "keepNumDims": False}
    return b.graph(
        [b.op(Builtin.FULLY_CONNECTED, [flat, weights, bias], (1, 101), _quant(), options=options)]
    )


@cache
def _case() -> tuple[CompiledGraph, list[list[np.ndarray]], list[list[np.ndarray]]]:
    graph = _network()
    inputs = [[RNG.integers(-128, 128, t.shape, np.int8) for t in graph.inputs] for _ in range(4)]
    wanted = [run_reference(graph, x) for x in inputs]
    return compile_graph(graph, find_target("imxrt700"), CompileOptions()), inputs, wanted


def _check(threads: int, times: int = 5) -> None:
    compiled, inputs, wanted = _case()
    model = NativeModel(compiled.microcode, compiled.weights, threads=threads)
    for _ in range(times):
        for x, want in zip(inputs, wanted, strict=True):
            (got,) = model.run(x)
            np.testing.assert_array_equal(want[0].reshape(got.shape), got)


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, _TASK, ctypes.c_void_p)
_YIELD = ctypes.CFUNCTYPE(None)


class _Threads(ctypes.Structure):
    """NeutronThreads of neutron.h."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("run", _RUN),
        ("yield", _YIELD),
    )


@pytest.fixture
def shared(monkeypatch) -> list[int]:
    """In place of a pool, a caller that takes the parts backwards and notes how many there were."""
    found: list[int] = []

    def run(context, parts, task, argument) -> None:
        found.append(parts)
        for part in reversed(range(parts)):
            task(argument, part)

    threads = _Threads(None, 3, _RUN(run), _YIELD())
    monkeypatch.setattr(native, "_threads", lambda library, count: ctypes.addressof(threads))
    return found


def test_one_thread_does_what_the_others_do_not_come_for(shared) -> None:
    """The caller of the fixture has one thread: the first part it takes finds all the work of the others."""
    _check(3, times=1)
    _, inputs, _ = _case()
    assert shared == [3] * len(inputs), "threads walk through the program together, once in a run"


def _parts(compiled: CompiledGraph, inputs: list[np.ndarray], found: list[int]) -> list[int]:
    """Into how many parts each call that is split was; a run that is traced splits them one by one."""
    model = NativeModel(compiled.microcode, compiled.weights, threads=3)
    found.clear()
    model.profile(inputs)
    return found


def test_every_large_call_is_shared_out_and_its_parts_may_run_in_any_order(shared) -> None:
    compiled, inputs, _ = _case()
    calls = [info.call for info in compiled.calls]
    stages = (mc.Form.MOVE, mc.Form.RESIZE, mc.Form.ACCUMULATE)  # in cascades, which are whole here
    whole = (mc.Form.WHOLE, mc.Form.ROWS, *stages)
    assert {call.form for call in calls} >= set(mc.Form) - set(whole), "the network has a call of every form"
    parts = _parts(compiled, inputs[0], shared)
    assert len(parts) == sum(call.form not in whole for call in calls)
    assert set(parts) <= {2, 3}


def test_rows_of_a_cascade_are_shared_out(shared) -> None:
    graph = _network()
    inputs = [RNG.integers(-128, 128, t.shape, np.int8) for t in graph.inputs]
    options = CompileOptions(optimise="size", cycle_budget=50.0)
    compiled = compile_graph(graph, find_target("imxrt700"), options)
    cascades = [call for call in compiled.program.calls if isinstance(call, mc.Cascade)]
    stages = sum(call.stages for call in cascades)
    (got,) = NativeModel(compiled.microcode, compiled.weights, threads=3).run(inputs)
    (want,) = run_reference(graph, inputs)
    np.testing.assert_array_equal(want.reshape(got.shape), got)
    outside = len(compiled.program.calls) - len(cascades) - stages
    assert len(_parts(compiled, inputs, shared)) > outside, "more than the calls outside"


def test_rows_of_a_fully_connected_layer_are_shared_out(shared) -> None:
    b = Builder()
    x = b.input("x", (21, 96), quant=_quant())
    weights = b.const(RNG.integers(-127, 128, (67, 96)).astype(np.int8), Quant.per_tensor(0.01))
    assert x.quant is not None
    bias = b.const(RNG.integers(-99, 99, 67).astype(np.int32), Quant.per_tensor(x.quant.scale[0] * 0.01))
    options = {"fusedActivationFunction": 0, "keepNumDims": False}
    graph = b.graph([b.op(Builtin.FULLY_CONNECTED, [x, weights, bias], (21, 67), _quant(), options=options)])
    inputs = [RNG.integers(-128, 128, (21, 96), np.int8)]
    compiled = compile_graph(graph, find_target("imxrt700"), CompileOptions())
    (got,) = NativeModel(compiled.microcode, compiled.weights, threads=3).run(inputs)
    np.testing.assert_array_equal(run_reference(graph, inputs)[0], got)
    assert _parts(compiled, inputs, shared) == [3]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_result_is_the_same(threads: int) -> None:
    _check(threads, times=20)


@pytest.mark.parametrize("threads", [1, 3])
def test_batch_is_one_call_with_the_bits_of_single_runs(threads: int) -> None:
    compiled, inputs, wanted = _case()
    model = NativeModel(compiled.microcode, compiled.weights, threads=threads)
    many = [np.stack([x[0] for x in inputs] * 5)]
    (found,) = model.run_batch(many)
    assert len(found) == 5 * len(inputs)
    for i, got in enumerate(found):
        np.testing.assert_array_equal(wanted[i % len(inputs)][0].reshape(got.shape), got)
    (none,) = model.run_batch([many[0][:0]])
    assert len(none) == 0
    with pytest.raises(OpenNeutronError, match="input 0 is int8"):
        model.run_batch([many[0][0]])
    with pytest.raises(OpenNeutronError, match="2 inputs given"):
        model.run_batch(many * 2)


def test_models_share_a_pool() -> None:
    """Runs at the same time: one has the threads, the others work alone."""
    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(_check, 3, 40) for _ in range(4)]:
            done.result()


def test_forked_process() -> None:
    """A child has the pool's memory without its threads; it must not wait for them."""
    _check(2, times=1)
    child = multiprocessing.get_context("fork").Process(target=_check, args=(2, 2))
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0


def test_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENNEUTRON_THREADS", raising=False)
    assert thread_count() == 1
    monkeypatch.setenv("OPENNEUTRON_THREADS", "3")
    assert (thread_count(), thread_count(2)) == (3, 2)
    for wrong in ("0", "-1", "many", "1000"):
        monkeypatch.setenv("OPENNEUTRON_THREADS", wrong)
        with pytest.raises(OpenNeutronError, match="ON518"):
            thread_count()
