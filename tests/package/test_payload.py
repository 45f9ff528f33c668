"""The payload: round trip, damage, and the stamp that is checked before anything runs."""

from __future__ import annotations

import contextlib
import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openneutron.compiler.microcode import format as mc
from openneutron.compiler.microcode.header import write_or_check
from openneutron.converter.stock import read_words
from openneutron.diagnostics import OpenNeutronError
from openneutron.package.header import COMMAND, HEADER_FILE, header_text
from openneutron.package.payload import Payload, Port, check_fits, pack, parse

REF = mc.Ref(mc.Region.SCRATCH)


def make_microcode(inputs=1, outputs=1, weights=0, **changes):
    io = mc.descriptor("int8", (1, 4))
    program = mc.Program(
        calls=(),
        inputs=(io,) * inputs,
        outputs=(io,) * outputs,
        weights_bytes=weights,
        scratch_bytes=64,
        converter_version=(1, 2, 3),
        **changes,
    )
    return mc.encode(program)


@st.composite
def payloads(draw):
    inputs = draw(st.integers(0, 5))
    outputs = draw(st.integers(1, 5))
    args = draw(st.integers(max(1, inputs), 9))
    weights = draw(st.binary(max_size=80))
    formats = st.sampled_from([0, 1])
    kernels = draw(st.binary(max_size=40))
    return Payload(
        inputs=tuple(Port(draw(st.integers(0, args - 1)), draw(formats)) for _ in range(inputs)),
        outputs=tuple(Port(draw(st.integers(0, 20)), draw(formats)) for _ in range(outputs)),
        input_args=args,
        microcode=make_microcode(inputs, outputs, len(weights)),
        weights=weights,
        kernels=kernels + bytes(-len(kernels) % 16),  # the padding of the last part cannot be told from it
    )


def parse_or_diagnose(raw):
    """Any exception but a diagnostic fails the test."""
    with contextlib.suppress(OpenNeutronError):
        parse(raw)


PLAIN = Payload((Port(0),), (Port(0),), 1, make_microcode(), b"", b"")


@given(payloads())
def test_parse_is_the_inverse_of_pack(payload):
    raw = pack(payload)
    assert len(raw) % 16 == 0
    assert parse(raw) == payload


@given(payloads(), st.data())
def test_truncation_is_a_diagnostic(payload, data):
    raw = pack(dataclasses.replace(payload, kernels=b""))
    with pytest.raises(OpenNeutronError, match="ON420"):
        parse(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(raw):
    parse_or_diagnose(raw)


@given(payloads(), st.data())
def test_flipped_header_bytes_never_raise_anything_else(payload, data):
    raw = bytearray(pack(payload))
    raw[data.draw(st.integers(0, min(len(raw) - 1, 80)))] ^= 1 << data.draw(st.integers(0, 7))
    parse_or_diagnose(bytes(raw))


def test_stamp_names_converter_format_and_target():
    stamp = PLAIN.stamp
    assert stamp.converter == "openneutron 1.2.3"
    assert (stamp.format_version, stamp.target) == (mc.FORMAT_VERSION, "imxrt700")
    check_fits(PLAIN, "imxrt700")


def patched(word, value):
    raw = bytearray(PLAIN.microcode)
    struct.pack_into("<I", raw, 4 * word, value)
    return dataclasses.replace(PLAIN, microcode=bytes(raw))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (patched(1, 99), ["format 99", f"format {mc.FORMAT_VERSION}", "openneutron 1.2.3"]),
        (patched(3, 77), ["unknown (id 77)", "imxrt700"]),
        (patched(0, 0x64434D6E), ["NXP's converter", f"format {mc.FORMAT_VERSION}"]),
    ],
)
def test_what_does_not_fit_names_both_versions(payload, says):
    with pytest.raises(OpenNeutronError) as caught:
        check_fits(parse(pack(payload)), "imxrt700")
    assert caught.value.diagnostic.code == "ON421"
    for text in says:
        assert text in caught.value.diagnostic.problem


def test_too_many_inputs_are_refused_by_number():
    payload = Payload((Port(0),) * 256, (Port(0),), 1, make_microcode(256), b"", b"")
    with pytest.raises(OpenNeutronError, match="256 inputs"):
        pack(payload)


def test_the_runtime_is_told_the_numbers_of_the_payload() -> None:
    assert write_or_check(["--check"], {HEADER_FILE: header_text()}, COMMAND) == 0
    offsets, at = {}, 0
    for name, word in mc.layout(mc.Header):
        offsets[name] = at
        at += mc.word_bytes(word) * (word.count or 1)
    raw = struct.pack("<13I", *range(13))
    words = read_words(raw)
    for name in ("magic", "microcode_bytes", "weights_bytes", "scratch_bytes", "inputs", "outputs"):
        assert 4 * getattr(words, name) == offsets[name], f"{name} is elsewhere in NXP's microcode"
