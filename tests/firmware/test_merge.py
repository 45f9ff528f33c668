"""Merging kernel selections: union, one version, nothing foreign or edited, nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from openneutron.cli import main
from openneutron.compiler.microcode.format import Kernel
from openneutron.converter.kernel_selection import KernelSelection, kernel_selection_code
from openneutron.converter.merge_kernels import main as merge_main
from openneutron.package.pte import inspect_program

A, B = (Kernel.CONV_2D, Kernel.SOFTMAX), (Kernel.ADD, Kernel.CONV_2D)
OURS = "openneutron 0.1.0"


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    for name, kernels in (("a", A), ("b", B)):
        (tmp_path / f"{name}.c").write_text(kernel_selection_code(kernels, OURS))
    return tmp_path / "a.c", tmp_path / "b.c"


def test_union_whatever_the_order_and_the_spelling(files, tmp_path):
    one, two, three = (tmp_path / f"{n}.out" for n in range(3))
    assert main(["merge-kernels", "-o", str(one), *map(str, files)]) == 0
    assert main(["merge-kernels", "-o", str(two), *map(str, reversed(files)), str(files[0])]) == 0
    spelled = ["-input-files", *map(str, files), "-output-file", str(three)]
    assert merge_main(spelled, inspect_program) == 0
    assert one.read_text() == two.read_text() == three.read_text() == kernel_selection_code({*A, *B}, OURS)


def test_a_merged_file_can_be_merged_again(files, tmp_path):
    merged = tmp_path / "merged.c"
    assert main(["merge-kernels", "-o", str(merged), *map(str, files)]) == 0
    again = tmp_path / "again.c"
    assert main(["merge-kernels", "-o", str(again), str(merged), str(files[1])]) == 0
    assert again.read_text() == merged.read_text()


def test_line_ends_of_other_systems_are_no_edit(files, tmp_path):
    files[0].write_bytes(files[0].read_bytes().replace(b"\n", b"\r\n"))
    assert main(["merge-kernels", "-o", str(tmp_path / "m.c"), *map(str, files)]) == 0


@pytest.mark.parametrize("what", ["converter", "target"])
def test_versions_and_targets_must_agree(files, tmp_path, capsys, what):
    other = {"converter": "openneutron 9.8.7", "target": "imxrt999"}[what]
    fields = {"converter": OURS, "target": "imxrt700", what: other}
    files[1].write_text(KernelSelection(kernels=frozenset(B), **fields).code())
    assert main(["merge-kernels", "-o", str(tmp_path / "m.c"), *map(str, files)]) == 1
    message = capsys.readouterr().err
    assert "ON423" in message and other in message
    assert str(files[0]) in message and str(files[1]) in message
    assert not (tmp_path / "m.c").exists()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("    [NEUTRON_KERNEL_ADD] = neutron_add,\n", "    [NEUTRON_KERNEL_ADD] = my_add,\n", None),
        ("    NEUTRON_KERNEL_ADD = 14,\n", "", None),
        ("};\n", "};\nint x;\n", None),
        ("/* The kernels", "/* My kernels", 1),
    ],
)
def test_edited_files_are_refused_with_the_line(files, tmp_path, capsys, old, new, line):
    text = files[1].read_text()
    assert old in text
    changed = new.join(text.rsplit(old, 1))
    number = line or next(
        i
        for i, (x, y) in enumerate(zip(changed.splitlines(), [*text.splitlines(), ""], strict=False), 1)
        if x != y
    )
    files[1].write_text(changed)
    assert main(["merge-kernels", "-o", str(tmp_path / "m.c"), *map(str, files)]) == 1
    assert f"{files[1]}:{number}" in capsys.readouterr().err
    assert not (tmp_path / "m.c").exists()


@pytest.mark.parametrize(
    "content", [b"", b"typedef enum NeutronKernelKind { A } NeutronKernelKind;\n", b"\xff\xfe\0"]
)
def test_foreign_files_are_refused(files, tmp_path, capsys, content):
    (tmp_path / "foreign.c").write_bytes(content)
    assert (
        main(["merge-kernels", "-o", str(tmp_path / "m.c"), str(files[0]), str(tmp_path / "foreign.c")]) == 1
    )
    message = capsys.readouterr().err
    assert "ON422" in message and "foreign.c:" in message


def test_a_missing_file_and_no_file(files, tmp_path, capsys):
    assert main(["merge-kernels", "-o", str(tmp_path / "m.c"), str(tmp_path / "none.c")]) == 1
    assert "none.c" in capsys.readouterr().err
    assert main(["merge-kernels", "-o", str(tmp_path / "m.c")]) == 2


def test_neutron_s_needs_no_selection(capsys, tmp_path):
    target = ("--target", "imx95", "--dump_kernel_selection_code")
    assert main(["compile", "cifarnet", *target, "-o", str(tmp_path / "a.pte")]) == 2
    assert "Kernel selection does not apply" in capsys.readouterr().err
