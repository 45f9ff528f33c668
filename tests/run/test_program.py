"""A .pte on ExecuTorch's runtime computes what LiteRT's reference kernels compute, bit for bit."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pytest
import torch

from openneutron.options import CompileOptions
from openneutron.package.payload import CHANNELS_LAST
from openneutron.package.program import CompiledProgram, delegates
from openneutron.package.pte import inspect_program
from openneutron.run.program import load_program
from tests.programs import assert_runs_exactly, assert_same, compiled_for, random_inputs, transposes
from tests.run.models import Plain, Several, Split
from tests.unplanned import unplanned_program

LAYOUTS = pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
CONVERSION = pytest.mark.parametrize("npu", [True, False], ids=["npu_transposes", "runtime_transposes"])


@cache
def compiled(model: type, channels_last: bool = False, npu: bool = True) -> CompiledProgram:
    options = CompileOptions(use_neutron_for_format_conversion=npu)
    return compiled_for(model(), model.shapes, channels_last, options=options)


def inputs_of(model: type, seed: int, channels_last: bool = False) -> tuple[torch.Tensor, ...]:
    return random_inputs(model.shapes, seed, channels_last)


@LAYOUTS
@CONVERSION
@pytest.mark.parametrize("model", [Plain, Split, Several])
def test_equals_reference(model: type, channels_last: bool, npu: bool) -> None:
    program = compiled(model, channels_last, npu)
    assert len(program.partitions) == (2 if model is Split else 1)
    assert [entry.op for entry in program.rejected] == (["aten.atan.default"] if model is Split else [])
    assert_runs_exactly(program, lambda seed: inputs_of(model, seed, channels_last), 8)


@CONVERSION
@pytest.mark.parametrize("model", [Plain, Split])
def test_who_transposes(model: type, npu: bool) -> None:
    flags = [p.format for payload in inspect_program(compiled(model, False, npu).pte).payloads()
             for p in (*payload.inputs, *payload.outputs)]  # fmt: skip
    assert (CHANNELS_LAST in flags) is not npu
    assert (transposes(compiled(model, False, npu)) > 0) is npu
    # Channels-last tensors at all borders: nobody has to.
    assert transposes(compiled(model, True, npu)) == 0


@LAYOUTS
def test_memory_order_of_inputs_does_not_matter(channels_last: bool) -> None:
    """A caller's tensor is brought into the program's order; arrays and tensors give the same."""
    program = load_program(compiled(Plain, channels_last).pte)
    (x,) = inputs_of(Plain, 5)
    expected = program.run((x,))
    assert_same(program.run((x.to(memory_format=torch.channels_last),)), expected)
    assert_same(program.run((x.numpy(),)), expected)
    assert_same(program.run((np.asfortranarray(x.numpy()),)), expected)


def test_streamed_weights() -> None:
    options = CompileOptions(fetch_constants_to_sram=True)
    program = compiled_for(Plain(), Plain.shapes, options=options)
    assert program.prefetch_bytes > 0
    assert_runs_exactly(program, lambda seed: inputs_of(Plain, seed), 4)


def test_per_channel() -> None:
    program = compiled_for(Plain(), Plain.shapes, per_channel=True)
    assert_runs_exactly(program, lambda seed: inputs_of(Plain, seed), 4)


def test_int8_interface() -> None:
    program = compiled_for(Plain(), Plain.shapes, int8_io=True)
    loaded = load_program(program.pte)
    method = loaded.method()
    assert [str(s) for s in (*method.inputs, *method.outputs)] == ["int8[1, 3, 12, 10]", "int8[1, 7]"]
    assert method.operators == ()  # nothing is left for the CPU
    rng = np.random.default_rng(0)
    assert_runs_exactly(
        program, lambda seed: (torch.from_numpy(rng.integers(-128, 128, Plain.shapes[0], np.int8)),), 4
    )


def test_threads_with_programs_of_their_own() -> None:
    pte = compiled(Split).pte
    inputs = [inputs_of(Split, seed) for seed in range(12)]
    expected = [load_program(pte).run(x) for x in inputs]

    def work() -> None:
        program = load_program(pte)
        for x, want in zip(inputs * 3, expected * 3, strict=True):
            assert_same(program.run(x), want)

    _run_threads([work] * 4)


def test_threads_with_one_program() -> None:
    """They take turns: ExecuTorch's memory plan has room for one run at a time."""
    program = load_program(compiled(Plain).pte)
    inputs = [inputs_of(Plain, seed) for seed in range(4)]
    expected = [program.run(x) for x in inputs]
    results: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        for _ in range(20):
            results[i] = program.run(inputs[i])

    _run_threads([lambda i=i: work(i) for i in range(4)])
    for i, want in enumerate(expected):
        assert_same(results[i], want)


def test_many_programs_one_after_another() -> None:
    """Loading and dropping a program leaves nothing behind that the next one trips over."""
    pte = compiled(Plain).pte
    (x,) = inputs_of(Plain, 0)
    expected = load_program(pte).run((x,))
    for _ in range(30):
        assert_same(load_program(pte).run((x,)), expected)


def test_inspect() -> None:
    info = inspect_program(compiled(Split).pte)
    assert info.sealed and list(info.methods) == ["forward"]
    method = info.methods["forward"]
    assert [d.backend for d in method.delegates] == ["NeutronBackend"] * 2
    assert "aten::atan.out" in method.operators
    stamps = [p.stamp for p in info.payloads()]
    assert {s.target for s in stamps} == {"imxrt700"}
    assert all(p.microcode == part.converted.microcode
               for p, part in zip(info.payloads(), compiled(Split).partitions, strict=True))  # fmt: skip


def test_events_of_kernel_calls(tmp_path) -> None:
    """Every kernel call is an event in ExecuTorch's ETDump, and has the handles of the nodes behind it."""
    from executorch.devtools import Inspector

    made = compiled_for(Plain(), Plain.shapes, etrecord=True)
    program = load_program(made.pte, etdump=True)
    program.run(inputs_of(Plain, 0))
    program.write_etdump(tmp_path / "plain.etdp")
    events = [
        e for block in Inspector(etdump_path=str(tmp_path / "plain.etdp")).event_blocks for e in block.events
    ]
    calls = made.compiled[0].calls
    (module,) = delegates(made.edge.graph_module)
    handles = module.meta["debug_handle_map"]
    assert list(handles) == list(range(len(calls))) and all(handles.values())
    assert sum(e.is_delegated_op is True and e.delegate_debug_identifier is not None for e in events) == len(
        calls
    )


def _run_threads(work) -> None:
    """All at the same time; what one of them raises is raised here."""
    with ThreadPoolExecutor(len(work)) as executor:
        for done in [executor.submit(w) for w in work]:
            done.result()


def test_threads_do_not_change_results() -> None:
    pte = compiled(Several).pte
    alone = load_program(pte, threads=1)
    before = len(os.listdir("/proc/self/task"))
    shared = load_program(pte, threads=11)  # a number no other test asks for: the pool is new
    for seed in range(4):
        inputs = inputs_of(Several, seed)
        assert_same(shared.run(inputs), alone.run(inputs))
    assert len(os.listdir("/proc/self/task")) == before + 10


def test_inputs_and_outputs_that_the_program_plans_no_memory_for() -> None:
    """As ExecuTorch's users lower for microcontrollers; a program from elsewhere is rehearsed first."""
    outputs = load_program(unplanned_program()).run([torch.randn(1, 3, 16, 16)])
    assert outputs[0].shape == (1, 8, 14, 14) and np.abs(outputs[0]).max() > 0
