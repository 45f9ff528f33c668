"""Programs of strangers: a valid seal proves nothing, and what ends a process ends one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.ir import Builtin, Graph, Op, Quant, Tensor
from openneutron.litert.reference import Reference
from openneutron.package.seal import is_sealed, seal
from openneutron.run import program as run_program
from openneutron.run import rehearsal
from openneutron.run.program import load_program
from tests.hostile import mutate_pte, mutate_tflite
from tests.programs import small_program

FOLDER = Path(__file__).with_name("corpus")
FOUND = sorted(FOLDER.glob("*.pte"))


def stranger() -> bytes:
    """The same program, as bytes that this process did not make."""
    data = bytearray(small_program()[: small_program().rindex(b"OpenNeutron.seal")])
    return seal(bytes(data) + bytes(16))


@pytest.fixture
def rehearsals(monkeypatch, tmp_path):
    """How often a process was started."""
    started = []
    real = rehearsal.subprocess.run

    def run(*args, **kwargs):
        started.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(rehearsal.subprocess, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return started


def test_a_seal_does_not_spare_the_rehearsal(rehearsals):
    data = stranger()
    assert is_sealed(data)
    load_program(data)
    assert len(rehearsals) == 1
    load_program(data)  # known by its digest
    assert len(rehearsals) == 1
    load_program(seal(data[:-48] + bytes(16)))
    assert len(rehearsals) == 2


def test_what_this_process_compiled_is_not_rehearsed(rehearsals):
    load_program(small_program())
    load_program(stranger(), trust=True)
    assert not rehearsals


def test_a_cache_that_cannot_be_written_is_none(rehearsals, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        load_program(stranger())
    assert len(rehearsals) == 2


def test_a_rehearsal_that_does_not_end_is_refused(monkeypatch, tmp_path):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(rehearsal, "REHEARSE", slow)
    monkeypatch.setattr(rehearsal, "SECONDS", -4)  # and five more
    with pytest.raises(OpenNeutronError) as raised:
        load_program(stranger())
    assert raised.value.diagnostic.code == "ON519" and "--trust" in raised.value.diagnostic.hint


def test_run_trust(rehearsals, tmp_path, monkeypatch):
    from openneutron.cli import main

    monkeypatch.chdir(tmp_path)
    Path("a.pte").write_bytes(stranger())
    assert main(["run", "a.pte", "--trust"]) == 0 and not rehearsals
    assert main(["run", "a.pte"]) == 0 and len(rehearsals) == 1


@pytest.mark.parametrize("file", FOUND, ids=lambda f: f.stem)
def test_what_was_found_stays_mended(file):
    """Each of these ended the process, or never came to an end, or was an exception of another kind."""
    data = file.read_bytes()
    assert is_sealed(data)
    assert mutate_pte.use(data).startswith("ON")


def test_some_resealed_mutations():
    """The long run: python -m tests.hostile.mutate_pte 5000 1"""
    assert mutate_pte.main(20, 7) == 0


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.tflite")), ids=lambda f: f.stem)
def test_models_that_ended_the_process(file):
    """LiteRT, which computes the tables, asserts on some scales."""
    assert mutate_tflite.use(file.read_bytes()) in ("compiled", "ON402")


def test_scales_that_litert_asserts_on_are_refused():
    tiny, one = (Quant.per_tensor(scale) for scale in (1e-30, 1.0))
    for kind, source, result in (
        (Builtin.ADD, one, tiny),
        (Builtin.SQUARED_DIFFERENCE, one, tiny),
        (Builtin.SUB, Quant.per_tensor(3e38), one),
        (Builtin.SOFTMAX, tiny, Quant.per_tensor(1 / 256, -128)),
    ):
        x, y = Tensor("x", (1, 4), "int8", source), Tensor("y", (1, 4), "int8", result)
        inputs = [x] if kind is Builtin.SOFTMAX else [x, x]
        with pytest.raises(ValueError, match="scales"):
            Reference(Graph([x], [y], [Op(kind, inputs, [y], {"beta": 1.0})]))


def test_names_in_a_program_are_names():
    data = stranger()
    for name in (b"for\x1bard", b"for*/rd"):
        with pytest.raises(OpenNeutronError) as raised:
            run_program.parse_program(data.replace(b"forward", name), "a.pte", True)
        assert raised.value.diagnostic.code == "ON512"
        assert "\x1b" not in str(raised.value)
