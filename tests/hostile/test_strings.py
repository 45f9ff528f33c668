"""Strings from files do not reach C sources or terminals as they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from openneutron.cli import main
from openneutron.compiler.microcode import format as mc
from openneutron.diagnostics import Diagnostic, OpenNeutronError, printable
from openneutron.firmware.program import read_firmware_program
from openneutron.litert.build import Builder
from openneutron.litert.ir import Quant
from tests.programs import small_program

EVIL = b"*/int x=1;/*\x1b[2J\x07"


@pytest.fixture
def evil(tmp_path, monkeypatch) -> Path:
    """A program whose header names its converter so that it would leave a C comment and clear a terminal."""
    from openneutron.package.pte import inspect_program
    from openneutron.package.seal import seal

    monkeypatch.chdir(tmp_path)
    (payload,) = inspect_program(small_program()).payloads()
    header = mc.unpack(mc.Header, payload.microcode)
    size = mc.format_of(mc.Header).size
    evil_header = mc.pack(replace(header, converter=EVIL.ljust(32, b"\0")))
    changed = mc.with_checksum(evil_header + payload.microcode[size:])
    assert len(changed) == len(payload.microcode)
    data = small_program()[: small_program().rindex(b"OpenNeutron.seal")].replace(payload.microcode, changed)
    Path("evil.pte").write_bytes(seal(data))
    return Path("evil.pte")


def test_c_sources(evil, capfd):
    assert main(["merge-kernels", str(evil), "-o", "selection.c"]) == 0
    Path("out").mkdir()
    read_firmware_program(evil).write(Path("out"))
    sources = [Path("selection.c"), *Path("out").glob("*.[chS]")]
    assert len(sources) == 3
    for source in sources:
        text = source.read_text()
        assert "*/int x" not in text and "\x1b" not in text
        assert text.count("/*") == text.count("*/")
    assert "\x1b[2J" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("command", ["disasm", "run", "report"])
def test_terminals(evil, capfd, command):
    main([command, str(evil), *(["-o", "r.html"] if command == "report" else [])])
    assert "\x1b[2J" not in "".join(capfd.readouterr())


def test_a_selection_file_names_its_converter_in_words(tmp_path):
    from openneutron.converter.kernel_selection import read_selection

    assert main(["merge-kernels", str(_saved(tmp_path)), "-o", str(tmp_path / "a.c")]) == 0
    text = (tmp_path / "a.c").read_text()
    read_selection(text, "a.c")
    with pytest.raises(OpenNeutronError, match="ON422"):
        read_selection(text.replace("converter: ", "converter: */ int x; /*", 1), "a.c")


def _saved(folder: Path) -> Path:
    (folder / "good.pte").write_bytes(small_program())
    return folder / "good.pte"


def test_diagnostics_are_printable():
    text = str(Diagnostic("ON510", "a\x1b[2J.pte", "is \u202ebad\x07", "line\nline"))
    assert text == "ON510: a?[2J.pte: is ?bad?\n  hint: line\nline"
    assert printable("Größe 3") == "Größe 3"


def test_tensor_names_of_a_litert_model():
    from openneutron.litert.file import read, write

    builder = Builder()
    x = builder.input("x", (1, 4), "int8", Quant((0.5,), (0,)))
    raw = write(builder.graph([builder.reshape(x, (4,), "outline")]))
    (tensor,) = read(raw.replace(b"outline", b"o\x1b[2J*/")).outputs
    assert tensor.name == "o?[2J*/"


NAME = r"a\u001b[2J\u001b]0;title\u0007[/red][bold]b\u202e"  # as TOML has it


@pytest.mark.parametrize("color", [False, True])
def test_names_in_budgets_and_spaces(tmp_path, monkeypatch, capfd, color):
    """They are shown, and neither a terminal nor the markup of the table obeys them."""
    monkeypatch.chdir(tmp_path)
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm-256color")
    report = dict.fromkeys(("partitions", "npu_nodes", "cycles_estimated", "scratch_bytes"), 1)
    name = json.loads(f'"{NAME}"')
    cpu = [{"node": name, "op": name, "code": "ON201", "reason": name, "hint": name}]
    for file, cycles in (("a.json", 1), ("b.json", 2)):
        found = {**report, "program_bytes": 1, "cpu_nodes": cpu, "cycles_estimated": cycles, "program": name}
        Path(file).write_text(json.dumps(found))
    Path("b.toml").write_text(
        f'[[model]]\nname = "{NAME}"\nmodel = "a.json"\nmax_partitions = 2\n'
        f'[[model]]\nname = "{NAME}"\nmodel = "{NAME}"\nmax_partitions = 2\n'
    )
    Path("s.toml").write_text(
        f'model = "cifarnet"\n[options]\n"{NAME}" = [1, 2]\n[objectives]\ncycles = "min"\n'
    )
    for command in (["check", "b.toml"], ["diff", "a.json", "b.json"], ["sweep", "s.toml"]):
        assert main(command) in (0, 1, 2)
        said = "".join(capfd.readouterr())
        assert "ON699" not in said and "Traceback" not in said
        for evil in ("\x1b[2J", "\x1b]", "\x07", "\u202e"):
            assert evil not in said, (command, evil)
        if command[0] != "diff":
            assert "[/red][bold]b" in said, command


def test_progress_shows_names_as_they_are(monkeypatch, capfd):
    from openneutron.commands.progress import Steps

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    steps = Steps()
    with steps.step("Loading [/red] \x1b[2J"):
        steps.note("a [/red] \x1b]0;x\x07")
    said = capfd.readouterr().err
    assert "[/red]" in said and "\x1b[2J" not in said and "\x1b]" not in said


def test_names_of_files_that_a_shell_put_in(tmp_path, monkeypatch, capfd):
    """What `openneutron report *.pte` finds in somebody else's folder is shown, not obeyed."""
    monkeypatch.chdir(tmp_path)
    name = json.loads(f'"{NAME}"').replace("/", "")
    Path(f"{name}.pte").write_bytes(small_program())
    for command in (
        ["report", f"{name}.pte"],
        ["report", f"{name}.pte", "-o", f"{name}.json"],
        ["diff", f"{name}.json", f"{name}.pte"],
        ["run", f"{name}.pte", "--output-dir", name],
        ["merge-kernels", f"{name}.pte", "-o", f"{name}.c"],
        ["compile", "cifarnet", f"--{name}.pte"],
    ):
        assert main(command) in (0, 2), command
        said = "".join(capfd.readouterr())
        assert not {"\x1b", "\x07", "\u202e"} & set(said), command
        assert "a?[2J" in said or command[0] == "diff", command


ODD = 'a\nmessage(FATAL_ERROR evil)\n*/ int x; /* \\ "q" ${b} é'


def test_names_of_files_in_generated_text(tmp_path):
    """A program's file name goes into C, assembly and CMake: nothing of it is obeyed there."""
    from openneutron.firmware.program import plain_name
    from openneutron.firmware.whole import read_whole_program

    path = tmp_path / f"{ODD}.pte".replace("/", "")
    path.write_bytes(small_program())
    for program in (read_whole_program(path), read_firmware_program(path)):
        text = program.assembly()
        assert "\nmessage" not in text and "int x; /*" not in text and "FATAL_ERROR" in text
        assert not set('\n\\"$*{}();') & set(program.name)
    assert plain_name(Path("a,b c-é.pte")) == "a_b c-é"
