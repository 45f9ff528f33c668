"""The whole compiler: what it emits, run by the C runtime, equals the reference interpreter exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.compiler.compile import compile_graph
from openneutron.compiler.microcode.format import Prefetch, Ref, Region, Wait, decode
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Quant
from openneutron.litert.reference import Reference
from openneutron.options import CompileOptions
from openneutron.run.native import NativeModel
from openneutron.targets.table import find_target
from tests.compiler.fuzz import WAYS, try_seed
from tests.compiler.graphs import random_graph, random_inputs
from tests.trained import trained_model

TARGET = find_target("imxrt700")
TRAINED = {
    "mlperf_tiny_ic_resnet8_int8": 49_152,
    "mlperf_tiny_kws_dscnn_int8": 16_000,
}
PLAIN, STREAMED = CompileOptions(), CompileOptions(fetch_constants_to_sram=True)
Q = Quant.per_tensor(0.05, 3)


def compiled(graph, options=PLAIN):
    return compile_graph(graph, TARGET, options)


def assert_exact(graph, result, inputs, reference=None):
    model = NativeModel(result.microcode, result.weights)
    reference = reference or Reference(graph)
    for expected, got in zip(reference.run(inputs), model.run(inputs), strict=True):
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=100)
@given(st.integers(0, 2**31), st.integers(3, 25), st.booleans())
def test_random_graphs_are_exact(seed, size, stream):
    graph = read(write(random_graph(seed, size)))
    result = compiled(graph, STREAMED if stream else PLAIN)
    assert_exact(graph, result, random_inputs(graph, seed))
    check_prefetches(result)


@pytest.mark.parametrize("seeds", [range(45, 90), range(90, 135)], ids=str)
def test_however_random_graphs_are_compiled_they_are_exact(seeds):
    """Some of what `python -m tests.compiler.fuzz` tries."""
    assert {try_seed(seed)[0] for seed in seeds} >= set(WAYS)


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("options", [PLAIN, STREAMED], ids=["plain", "streamed"])
def test_trained_models_are_exact(name, options):
    path = trained_model(name)
    graph = read(path.read_bytes(), name)
    result = compiled(graph, options)
    reference = Reference(path.read_bytes())
    for seed in range(50):
        assert_exact(graph, result, random_inputs(graph, seed), reference)
    assert result.scratch_bytes <= TRAINED[name]
    assert result.scratch_bytes <= 1.02 * result.scratch_bound


@settings(max_examples=10)
@given(st.integers(0, 2**31))
def test_the_same_graph_gives_the_same_bytes(seed):
    raw = write(random_graph(seed))
    first, second = compiled(read(raw)), compiled(read(raw))
    assert (first.microcode, first.weights) == (second.microcode, second.weights)


@settings(max_examples=25)
@given(st.integers(0, 2**31))
def test_the_report_agrees_with_the_bytes(seed):
    result = compiled(read(write(random_graph(seed))), STREAMED if seed % 2 else PLAIN)
    program = decode(result.microcode)
    assert program.calls == tuple(info.call for info in result.calls)
    for region, size in ((Region.SCRATCH, result.scratch_bytes), (Region.PREFETCH, result.prefetch_bytes)):
        ends = [b.offset + b.nbytes for b in result.buffers if b.region is region]
        assert size - 16 < max(ends, default=0) <= size
    assert all(0 <= b.first_call <= b.last_call < len(program.calls) for b in result.buffers)
    assert all(info.origin for info in result.calls)


def refs(value):
    """Every address in a call."""
    for item in vars(value).values():
        if isinstance(item, Ref):
            yield item
        elif hasattr(item, "__dataclass_fields__"):
            yield from refs(item)


def check_prefetches(result):
    """What is read from PREFETCH has been copied there and awaited, and nothing copied over it since."""
    under_way, ready = {}, {}
    for call in result.program.calls:
        if isinstance(call, Prefetch):
            assert call.channel not in under_way
            begin, end = call.destination.offset, call.destination.offset + call.size
            ready = {r: c for r, c in ready.items() if r[1] <= begin or end <= r[0]}
            assert all(r[1] <= begin or end <= r[0] for r in under_way.values())
            under_way[call.channel] = (begin, end)
        elif isinstance(call, Wait):
            ready[under_way.pop(call.channel)] = call.channel
        else:
            for ref in refs(call):
                if ref.region == Region.PREFETCH:
                    assert any(begin <= ref.offset < end for begin, end in ready)
                assert not (result.prefetch_bytes and ref.region == Region.WEIGHTS)
    assert not under_way


def wide_network(layers=6, channels=32):
    """Fully connected layers of growing width, so that weights far outweigh activations."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", (1, channels), quant=Q)
    for layer in range(layers):
        units = channels * (1 + layer % 3)
        w = b.const(rng.integers(-127, 128, (units, x.shape[1])).astype(np.int8), Quant.per_tensor(0.01))
        bias = b.const(np.zeros(units, np.int32), Quant.per_tensor(0.05 * 0.01))
        x = b.op(Builtin.FULLY_CONNECTED, [x, w, bias], (1, units), Q, options={"fusedActivationFunction": 0})
    return b.graph([x])


def test_streaming_keeps_two_layers_in_sram_not_all():
    graph = wide_network()
    all_at_once, streamed = compiled(graph), compiled(graph, STREAMED)
    assert streamed.prefetch_bytes < len(all_at_once.weights) / 1.5
    assert streamed.sram_bytes < all_at_once.sram_bytes
    overlapped = sum(isinstance(c, Prefetch) for c in streamed.program.calls)
    assert overlapped == 6


def test_streaming_stays_within_its_budget():
    graph = wide_network()
    free = compiled(graph, STREAMED)
    largest = max(b.nbytes for b in free.buffers if b.region is Region.PREFETCH)
    budget = free.scratch_bytes + largest
    tight = compiled(graph, CompileOptions(fetch_constants_to_sram=True, sram_bytes=budget))
    assert tight.prefetch_bytes == largest < free.prefetch_bytes
    assert tight.sram_bytes <= budget
    check_prefetches(tight)
    assert_exact(graph, tight, random_inputs(graph, 0))
    assert tight.cycles >= free.cycles


def convolutions():
    """A padded, a pointwise and a strided convolution with many channels, then a classifier."""
    rng = np.random.default_rng(1)
    b = Builder()
    x = b.input("x", (1, 5, 6, 16), quant=Q)
    x = b.op(
        Builtin.PAD, [x, b.const(np.array([[0, 0], [1, 1], [2, 0], [0, 0]], np.int32))], (1, 7, 8, 16), Q
    )
    for kernel, stride, size in ((3, 1, (5, 6)), (1, 1, (5, 6)), (2, 2, (2, 3))):
        channels = 100
        shape = (channels, kernel, kernel, x.shape[3])
        scales = rng.uniform(0.002, 0.01, channels).astype(np.float32)
        w = b.const(rng.integers(-127, 128, shape).astype(np.int8), Quant.per_axis(scales))
        bias = b.const(
            rng.integers(-99, 99, channels).astype(np.int32), Quant.per_axis(scales * np.float32(0.05))
        )
        options = {
            "padding": 1,
            "strideH": stride,
            "strideW": stride,
            "dilationHFactor": 1,
            "dilationWFactor": 1,
            "fusedActivationFunction": 1,
        }
        x = b.op(Builtin.CONV_2D, [x, w, bias], (1, *size, channels), Q, options=options)
    x = b.reshape(x, (1, 600))
    w = b.const(rng.integers(-127, 128, (60, 600)).astype(np.int8), Quant.per_tensor(0.01))
    options = {"fusedActivationFunction": 0}
    return b.graph([b.op(Builtin.FULLY_CONNECTED, [x, w, None], (1, 60), Q, options=options)])


@pytest.mark.parametrize("room", [40_000, 20_000, 9_000])
def test_layers_larger_than_the_budget_are_split(room):
    graph = convolutions()
    scratch = compiled(graph).scratch_bytes
    whole = compiled(graph, STREAMED)
    result = compiled(graph, CompileOptions(fetch_constants_to_sram=True, sram_bytes=scratch + room))
    assert result.prefetch_bytes <= room < whole.prefetch_bytes
    assert len(result.calls) > len(whole.calls)
    assert result.macs == whole.macs
    check_prefetches(result)
    assert_exact(graph, result, random_inputs(graph, 0))


def failure(graph, **options):
    with pytest.raises(OpenNeutronError) as caught:
        compiled(graph, CompileOptions(**options))
    return caught.value.diagnostic


def test_what_does_not_fit_is_told_in_numbers():
    graph = wide_network()
    most = compiled(graph).sram_bytes
    need = compiled(graph, CompileOptions(sram_bytes=most - 1)).sram_bytes  # results over what they are of
    diagnostic = failure(graph, sram_bytes=need - 1)
    assert diagnostic.code == "ON403"
    assert f"{need:,}" in diagnostic.problem and f"{need - 1:,}" in diagnostic.problem
    assert "fetch_constants_to_sram" in diagnostic.hint

    diagnostic = failure(graph, sram_bytes=512, fetch_constants_to_sram=True)
    assert diagnostic.code == "ON403" and diagnostic.where.startswith("FULLY_CONNECTED")

    diagnostic = failure(graph, sram_bytes=16, fetch_constants_to_sram=True)
    assert "activations need" in diagnostic.problem


def test_weights_that_cannot_fit_are_said_before_anything_is_planned(monkeypatch):
    graph = wide_network()
    monkeypatch.setattr("openneutron.compiler.compile.choose_candidate", lambda *args: pytest.fail("planned"))
    diagnostic = failure(graph, sram_bytes=16)
    assert diagnostic.code == "ON403" and "the weights of its layers have" in diagnostic.problem
    assert "fetch_constants_to_sram" in diagnostic.hint


def test_an_operator_without_a_kernel_is_named_with_the_others():
    b = Builder()
    x = b.input("x", (1, 4), "float32")
    y = b.op(Builtin.SOFTMAX, [x], (1, 4), dtype="float32", name="probabilities", options={"beta": 1.0})
    z = b.op(Builtin.EXP, [y], (1, 4), dtype="float32", name="grown")
    diagnostic = failure(b.graph([z]))
    assert diagnostic.code == "ON401"
    assert diagnostic.where == "SOFTMAX probabilities" and "EXP grown" in diagnostic.problem


def test_several_inputs_and_outputs_in_any_order():
    b = Builder()
    x, y = b.input("x", (2, 3), quant=Q), b.input("y", (2, 3), quant=Q)
    total = b.op(Builtin.ADD, [x, y], (2, 3), Q, options={"fusedActivationFunction": 0})
    graph = b.graph([b.dequantize(total), y, total, b.reshape(total, (3, 2)), total])
    assert_exact_outputs(graph)


def assert_exact_outputs(graph):
    """LiteRT keeps one copy of an output listed twice; ours are separate, so compare one by one."""
    inputs = random_inputs(graph, 3)
    result = compiled(graph)
    got = NativeModel(result.microcode, result.weights).run(inputs)
    for index, output in enumerate(graph.outputs):
        if output in graph.inputs:
            expected = inputs[graph.inputs.index(output)]
        else:
            single = type(graph)(graph.inputs, [output], graph.ops)
            expected = Reference(single).run(inputs)[0]
        np.testing.assert_array_equal(got[index], expected)
