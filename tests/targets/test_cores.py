"""The cores of the chips: linker scripts have their sizes, recipes compile for the chip's own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from openneutron import CompileOptions
from openneutron.firmware.cores import cores_of
from openneutron.recipes.parts import lowering_of
from openneutron.recipes.recipe import NEUTRON, NPU_CPU
from openneutron.targets.cores import cortex_m55
from openneutron.targets.table import TARGETS, core_of

SCRIPTS = Path(__file__).resolve().parents[2] / "runtime/firmware"
UNITS = {"": 1, "K": 1024, "M": 1024 * 1024}


@pytest.mark.parametrize("name", TARGETS)
def test_linker_scripts_have_the_sizes_of_the_cores(name):
    chip = TARGETS[name]
    for core in cores_of(chip).values():
        text = (SCRIPTS / core.script).read_text()
        found = re.findall(r"(\w+) \(\w+\) *: ORIGIN = \w+, LENGTH = (\d+)([KM]?)", text)
        sizes = {region: int(number) * UNITS[unit] for region, number, unit in found}
        assert (sizes["FLASH"], sizes["SRAM"]) == (core.flash_bytes, core.sram_bytes), core.script
        assert core.sram_bytes <= chip.sram_bytes and core.flash_bytes <= (
            chip.flash_bytes or core.flash_bytes
        )


def test_recipes_compile_for_the_cpu_of_the_chip(monkeypatch):
    own = replace(TARGETS["imxrt700"], name="nova", number=99, cores=(cortex_m55("nova.ld", 1, 1),))
    monkeypatch.setitem(TARGETS, "nova", own)
    assert (core_of("nova"), core_of("mcxn94x"), core_of("imx95", "eiq")) == (
        "cortex-m55",
        *["cortex-m33"] * 2,
    )
    for core, chosen in ((None, "cortex-m55"), ("cortex-m4", "cortex-m4")):
        (to_cortex_m, _) = lowering_of(NPU_CPU, CompileOptions("nova"), core).after
        assert to_cortex_m.target_config.target_string == chosen
    assert len(lowering_of(NEUTRON, CompileOptions("nova")).after) == 1


def test_no_code_names_a_chip_but_its_own_file():
    """The default's name is in a few places; what another chip's would be for, its file says."""
    root = SCRIPTS.parents[1]
    named = [
        path.relative_to(root).as_posix()
        for place, ends in (("src", (".py",)), ("runtime", (".c", ".h", ".cpp")))
        for path in (root / place).rglob("*")
        if path.suffix in ends and re.search("mcx_?n", path.read_text(), re.IGNORECASE)
    ]
    assert sorted(named) == ["runtime/generated/neutron_microcode.h", "src/openneutron/targets/chips/mcxn.py"]
