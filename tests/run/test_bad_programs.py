"""Whatever is wrong with a program or its inputs: one diagnostic that names it, and the process lives on."""

import random
import struct
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.compiler.microcode import format as microcode
from openneutron.converter.stock import MAGIC as STOCK_MAGIC
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.file import write
from openneutron.package.program import CompiledProgram
from openneutron.package.pte import inspect_program
from openneutron.package.seal import is_sealed, seal
from openneutron.run import rehearsal
from openneutron.run.delegate import load_runtime
from openneutron.run.litert import load_litert
from openneutron.run.program import load_program
from tests.programs import compiled_for, random_inputs
from tests.run.models import Plain

SEAL_BYTES = 48


@cache
def compiled() -> CompiledProgram:
    return compiled_for(Plain(), Plain.shapes)


def pte() -> bytes:
    return compiled().pte


def unsealed() -> bytes:
    """As `to_executorch().buffer` gives it, without our pipeline."""
    return pte()[:-SEAL_BYTES]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def replaced(old: bytes, new: bytes) -> bytes:
    """A program changed on purpose, with an intact seal."""
    assert len(old) == len(new) and old in unsealed()
    return seal(unsealed().replace(old, new))


def problem(source: Path | str | bytes) -> tuple[str, str]:
    """The code and message of loading and running a program that is bad."""
    with pytest.raises(OpenNeutronError) as caught:
        load_program(source).run(random_inputs(Plain.shapes, 0))
    return caught.value.diagnostic.code, str(caught.value)


# ----------------------------------------------------------------------------------------------------------
# Files


def test_no_such_file(tmp_path: Path) -> None:
    code, text = problem(tmp_path / "absent.pte")
    assert code == "ON510" and "absent.pte" in text


def test_a_folder(tmp_path: Path) -> None:
    assert problem(str(tmp_path))[0] == "ON510"


@pytest.mark.parametrize("data", [b"", b"x", b"no program at all, just text", bytes(4096)])
def test_not_a_program(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.pte").write_bytes(data)
    code, text = problem(tmp_path / "a.pte")
    assert code == "ON511" and "a.pte" in text


def test_a_litert_model() -> None:
    code, text = problem(write(compiled().graphs[0]))
    assert code == "ON511" and "LiteRT" in text


def test_truncated() -> None:
    for size in (*range(8, 200, 7), *range(200, len(unsealed()), 997), len(unsealed()) - 1):
        code, _ = problem(pte()[:size])
        assert code in ("ON512", "ON511"), size
    assert "truncated" in problem(pte()[:-2000])[1]


def test_one_bit_flipped() -> None:
    """Every flip is noticed, by the seal."""
    rng = random.Random(0)
    for _ in range(300):
        code, _ = problem(flipped(pte(), rng.randrange(8 * (len(pte()) - SEAL_BYTES))))
        assert code in ("ON512", "ON511")


def test_one_bit_flipped_without_a_seal() -> None:
    """Some flips go unnoticed, but none ends the process: a rehearsal elsewhere comes first."""
    rng = random.Random(1)
    header = 2400  # the structure of the program, where ExecuTorch is most easily confused
    inputs = random_inputs(Plain.shapes, 0)
    seen = set()
    for i in range(120):
        data = flipped(unsealed(), rng.randrange(8 * (header if i % 4 else len(unsealed()))))
        try:
            load_program(data).run(inputs)
        except OpenNeutronError as error:
            seen.add(error.diagnostic.code)
    assert "ON512" in seen and seen <= {"ON420", "ON421", "ON511", "ON512", "ON513", "ON514", "ON515"}


def test_seal_is_optional() -> None:
    inputs = random_inputs(Plain.shapes, 0)
    assert not is_sealed(unsealed()) and is_sealed(pte()) and seal(pte()) == pte()
    np.testing.assert_array_equal(load_program(unsealed()).run(inputs)[0], load_program(pte()).run(inputs)[0])


# ----------------------------------------------------------------------------------------------------------
# Payloads


def test_payload_of_the_vendor(capfd: pytest.CaptureFixture[str]) -> None:
    own = struct.pack("<I", microcode.MAGIC)
    data = replaced(own, struct.pack("<I", STOCK_MAGIC))
    code, text = problem(data)
    assert code == "ON421" and "NXP" in text and "--converter open" in text
    _refused_by_delegate(data)
    assert "made by NXP's converter" in capfd.readouterr().err


def test_payload_of_another_format_version(capfd: pytest.CaptureFixture[str]) -> None:
    at = unsealed().index(struct.pack("<I", microcode.MAGIC))
    header = microcode.unpack(microcode.Header, unsealed()[at:])
    offset = _offset_of(header.format_version)
    data = bytearray(unsealed())
    struct.pack_into("<I", data, at + offset, header.format_version + 7)
    code, text = problem(seal(bytes(data)))
    assert code == "ON421" and f"format {header.format_version + 7}" in text
    _refused_by_delegate(bytes(data))
    assert f"microcode format {header.format_version + 7}, this is runtime" in capfd.readouterr().err


def test_damaged_weights() -> None:
    """The microcode's own checksum notices what a seal made afterwards hides."""
    weights = inspect_program(pte()).payloads()[0].weights
    at = unsealed().index(weights)
    code, text = problem(seal(flipped(unsealed(), 8 * (at + len(weights) // 2))))
    assert code == "ON512" and "checksum" in text and "delegate 0" in text


def test_damaged_microcode() -> None:
    at = unsealed().index(struct.pack("<I", microcode.MAGIC))
    code, text = problem(seal(flipped(unsealed(), 8 * (at + 200))))
    assert code == "ON512" and "delegate 0" in text


def _offset_of(version: int) -> int:
    """Where the format version is: the second word, unless the format has changed."""
    at = unsealed().index(struct.pack("<I", microcode.MAGIC))
    assert struct.unpack_from("<I", unsealed(), at + 4) == (version,)
    return 4


def _refused_by_delegate(data: bytes) -> None:
    """The C++ delegate itself refuses too, for callers without our Python."""
    program = load_runtime().load_program(data)
    with pytest.raises(RuntimeError, match="0x:30"):  # DelegateInvalidCompatibility
        program.load_method("forward")


# ----------------------------------------------------------------------------------------------------------
# Inputs, operators, libraries


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((), "0 inputs given, forward takes 1"),
        ((torch.zeros(1, 3, 12, 10), torch.zeros(1)), "2 inputs given"),
        ((torch.zeros(1, 3, 12, 11),), "takes float32[1, 3, 12, 10]"),
        ((torch.zeros(3, 12, 10),), "is float32[3, 12, 10]"),
        ((torch.zeros(1, 3, 12, 10, dtype=torch.float64),), "is float64[1, 3, 12, 10]"),
        ((np.zeros((1, 3, 12, 10), np.int8),), "is int8[1, 3, 12, 10]"),
        (("a picture",), "is str"),
    ],
)
def test_wrong_inputs(inputs: tuple, says: str) -> None:
    program = load_program(pte())
    with pytest.raises(OpenNeutronError) as caught:
        program.run(inputs)
    assert caught.value.diagnostic.code == "ON514" and says in str(caught.value)
    program.run(random_inputs(Plain.shapes, 0))  # still usable


def test_unknown_method() -> None:
    with pytest.raises(OpenNeutronError, match="It has: forward"):
        load_program(pte()).run((), method="backward")


def test_missing_operator() -> None:
    name = b"quantized_decomposed::quantize_per_tensor"
    code, text = problem(replaced(name, name.replace(b"tensor", b"tenser")))
    assert code == "ON513" and "quantize_per_tenser.out" in text


def test_missing_backend() -> None:
    code, text = problem(replaced(b"NeutronBackend", b"ElectroBackend"))
    assert code == "ON513" and "ElectroBackend" in text


def test_delegate_not_built(tmp_path: Path) -> None:
    with pytest.raises(OpenNeutronError, match="make setup") as caught:
        load_runtime(tmp_path / "libneutron_backend.so")
    assert caught.value.diagnostic.code == "ON504"


def test_without_rehearsal_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partial build runs whole programs all the same."""
    monkeypatch.setattr(rehearsal, "REHEARSE", tmp_path / "absent")
    load_program(unsealed()).run(random_inputs(Plain.shapes, 0))


def test_litert_files(tmp_path: Path) -> None:
    for data in (b"", b"text", bytes(100)):
        (tmp_path / "a.tflite").write_bytes(data)
        with pytest.raises(OpenNeutronError) as caught:
            load_litert(tmp_path / "a.tflite")
        assert caught.value.diagnostic.code == "ON302"
    with pytest.raises(OpenNeutronError) as caught:
        load_litert(tmp_path / "absent.tflite")
    assert caught.value.diagnostic.code == "ON510"
