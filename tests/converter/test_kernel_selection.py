"""The kernel-selection file compiles against the runtime's headers and names what it should."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from openneutron.compiler.microcode.format import Kernel
from openneutron.converter.kernel_selection import kernel_selection_code

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"


@pytest.mark.parametrize("kernels", [[Kernel.CONV_2D], list(Kernel)])
def test_the_file_compiles_without_a_warning(tmp_path, kernels):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source = tmp_path / "model_kernel_selection.c"
    source.write_text(kernel_selection_code(kernels, "openneutron 1.0.0"))
    includes = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'generated'}"]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([compiler, *flags, *includes, str(source)], check=True, capture_output=True, text=True)


def test_only_the_kernels_asked_for_in_table_order_each_once():
    code = kernel_selection_code([Kernel.TABLE, Kernel.ADD, Kernel.ADD], "openneutron 1.0.0")
    assert code.count("neutron_add,") == 1
    assert code.index("neutron_add,") < code.index("neutron_table,")
    assert "neutron_mul" not in code
