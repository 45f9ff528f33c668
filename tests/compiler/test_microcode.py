"""The microcode format: bytes and values are the same thing, and the C header is the same definition."""

from __future__ import annotations

import dataclasses
import re
import struct
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode import header
from openneutron.compiler.microcode.header import HEADER_FILE, main
from openneutron.diagnostics import OpenNeutronError

ROOT = Path(__file__).resolve().parents[2]
_RANGE = {"B": (0, 2**8), "H": (0, 2**16), "I": (0, 2**32), "i": (-(2**31), 2**31)}


@cache
def values(cls: type) -> st.SearchStrategy:
    """Any value of a layout."""
    parts = {}
    for name, word in mc.layout(cls):
        if not isinstance(word, mc.Word):
            parts[name] = values(word)
        elif word.code == "f":
            parts[name] = st.floats(width=32, allow_nan=False)
        else:
            low, high = _RANGE[word.code]
            one = st.integers(low, high - 1)
            parts[name] = st.tuples(*[one] * word.count) if word.count else one
    if (tail := mc.tail_of(cls)) is not None:
        parts[tail[0]] = st.lists(values(tail[1]), max_size=5).map(tuple)
    return st.builds(cls, **parts)


calls = st.one_of(*map(values, mc.PARAMS.values()))
shapes = st.lists(st.integers(1, 9), max_size=6)
descriptors = st.builds(
    mc.descriptor, st.sampled_from(["int8", "float32", "int32", "int64", "uint8"]), shapes
)
programs = st.builds(
    mc.Program,
    calls=st.lists(calls.filter(lambda c: getattr(c, "channel", 0) < 2**32 - 1), max_size=3).map(tuple),
    inputs=st.lists(descriptors, max_size=3).map(tuple),
    outputs=st.lists(descriptors, max_size=3).map(tuple),
    weights_bytes=st.integers(0, 2**32 - 1),
    scratch_bytes=st.integers(0, 2**32 - 1),
    prefetch_bytes=st.integers(0, 2**32 - 1),
    converter_version=st.tuples(*[st.integers(0, 255)] * 3),
)


@settings(max_examples=60)
@given(programs)
def test_encode_decode(program):
    raw = mc.encode(program)
    assert len(raw) % mc.ALIGNMENT == 0
    decoded = mc.decode(raw)
    assert decoded == program
    assert mc.encode(decoded) == raw
    lines = [line for line in mc.disassemble(decoded) if not line.startswith("      ;")]  # steps
    assert len(lines) == 2 + len(program.inputs) + len(program.outputs) + len(program.calls)


@settings(max_examples=30)
@given(programs, st.data())
def test_damage_is_noticed(program, data):
    raw = bytearray(mc.encode(program))
    at = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[at // 8] ^= 1 << at % 8
    with pytest.raises(OpenNeutronError):
        mc.decode(bytes(raw))


@settings(max_examples=30)
@given(programs, st.data())
def test_truncation_is_noticed(program, data):
    raw = mc.encode(program)
    with pytest.raises(OpenNeutronError):
        mc.decode(raw[: data.draw(st.integers(0, len(raw) - 1))])


def test_header_words_are_where_runtimes_look():
    """Sizes at the words of NXP's format, behind a magic NXP's runtime refuses."""
    shape = mc.descriptor("int8", (4,))
    program = mc.Program((), (shape, shape), (shape,), 1000, 2000, 3000)
    raw = mc.encode(program)
    word = struct.unpack_from("<16I", raw)
    assert word[0] != 0x64434D6E
    assert (word[6], word[7], word[9], word[10], word[11], word[12]) == (len(raw), 1000, 2000, 3000, 2, 1)


def test_required_kernels():
    ref = mc.Ref(mc.Region.INPUT)
    table = mc.Table(ref, ref, ref, 1, 1, 1, 1)
    header = mc.decode(mc.encode(mc.Program((table,), (), (), 0, 0))).header
    assert header is not None and header.required_kernels == (1 << mc.Kernel.TABLE, 0, 0, 0)


def test_layouts_have_no_holes():
    """Every field is at a multiple of its size, so that C has no padding where Python has none."""
    for cls in (mc.Ref, mc.View, mc.Window, mc.Broadcast, mc.Header, mc.Descriptor, *mc.PARAMS.values()):
        at = 0
        for _, word in mc.layout(cls):
            if isinstance(word, mc.Word):
                size = mc.word_bytes(word)
                assert at % size == 0
                at += size * (word.count or 1)
            else:
                assert at % 4 == 0
                at += mc.format_of(word).size
        assert at == mc.format_of(cls).size and (at % 4 == 0)


def test_generated_files_are_current(monkeypatch, capsys):
    assert main(["--check"]) == 0, f"run python -m openneutron.compiler.microcode --write ({HEADER_FILE})"
    monkeypatch.setattr(header, "header_text", lambda: "a definition that has changed since")
    assert main(["--check"]) == 1
    assert f"{HEADER_FILE} is out of date" in capsys.readouterr().err


def test_a_record_without_a_cost_is_refused_where_it_is_defined():
    with pytest.raises(TypeError, match="NoCost has no rule for the bytes moved and written"):

        class NoCost(mc.Params):
            kernel = mc.Kernel.COPY


@pytest.mark.parametrize("kernel", mc.Kernel, ids=lambda kernel: kernel.name)
def test_a_kernel_has_a_record_a_c_file_and_a_rule_that_selects_it(kernel):
    name = mc.PARAMS[kernel].__name__
    source = ROOT / "runtime/kernels" / f"{kernel.name.lower()}.c"
    assert source.exists(), f"{kernel.name} has no {source.name} in runtime/kernels"
    assert re.search(rf"\bneutron_{kernel.name.lower()}\b", source.read_text())
    compiler = ROOT / "src/openneutron/compiler"
    rules = "".join(p.read_text() for room in ("select", "emit") for p in (compiler / room).glob("*.py"))
    assert re.search(rf"\b{name}\b", rules), f"no rule selects {name}"


@settings(max_examples=60)
@given(calls)
def test_a_form_comes_first_in_its_records(call):
    layouts = [cls for cls in mc.FORM_LAYOUTS if isinstance(call, cls)]
    assert bool(layouts) == (call.form is not mc.Form.WHOLE)
    for cls in layouts:
        front = mc.format_of(cls).size
        same = cls(**{name: getattr(call, name) for name, _ in mc.layout(cls)})
        assert mc.pack(same) == mc.pack(call)[:front]


def test_disassembly_reads_well():
    ref = mc.Ref(mc.Region.SCRATCH, offset=64)
    window = mc.Window(1, 8, 8, 3, 4, 4, 16, 3, 3, 2, 2, 1, 1, 0, 0, 0, 2)
    view = mc.View(dataclasses.replace(ref, rows=5), 3, 24)
    conv = mc.Conv2D(view, mc.View(mc.Ref(mc.Region.OUTPUT), 16, 64), window, ref, ref, 0, 0, -128, 127)
    line = mc.disassemble(mc.Program((conv,), (), (), 0, 0))[-1]
    assert line.startswith("   0  conv_2d            input=scratch+64%5[24,3] output=output0+0[64,16] ")
    assert "1x8x8x3->4x4x16 k3x3 s2x2 d1x1 p0,0 rows 0..2" in line
