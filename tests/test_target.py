"""The target table: the figures everything else computes with, and what a wrong name gets."""

import pytest

from openneutron.diagnostics import OpenNeutronError
from openneutron.targets.spec import NeutronTargetSpec
from openneutron.targets.table import REFUSED_TARGETS, TARGETS


def test_default_target_is_the_published_rt700():
    spec = NeutronTargetSpec()
    assert spec == NeutronTargetSpec("imxrt700") == NeutronTargetSpec(target="imxrt700")
    assert (spec.name, spec.hw_version) == ("imxrt700", "N3-64")
    assert (spec.units, spec.pipes, spec.macs, spec.num_macs) == (1, 8, 8, 64)
    assert spec.sram_bytes == 7_864_320
    assert spec.frequency_hz == 324_000_000


@pytest.mark.parametrize("name", ["imx95", "imx943", "imx952", "s32n79"])
def test_neutron_s_is_known_but_refused(name):
    with pytest.raises(OpenNeutronError, match="Neutron-S") as error:
        NeutronTargetSpec(name)
    assert error.value.diagnostic.code == "ON102"
    assert "imxrt700" in error.value.diagnostic.hint


@pytest.mark.parametrize("name", ["s32k5", "imx95", "a-chip-of-tomorrow"])
def test_with_nxps_converter_the_sdk_decides(name):
    spec = NeutronTargetSpec(name, converter="eiq")
    assert spec.name == name and not spec.target.known and spec.sram_bytes == 0
    assert "runtime" in spec.target.runtime


def test_nxps_names_are_passed_on():
    spec = NeutronTargetSpec("mcxn94x", converter="eiq")
    assert spec.name == "mcxn94x" and spec.target.known


def test_unknown_name_lists_all_and_suggests_the_nearest():
    with pytest.raises(OpenNeutronError) as error:
        NeutronTargetSpec("imxrt70")
    assert error.value.diagnostic.code == "ON101"
    assert "Did you mean 'imxrt700'?" in str(error.value)
    for name in [*TARGETS, *REFUSED_TARGETS]:
        assert name in str(error.value)


@pytest.mark.parametrize("name", [None, 700, ""])
def test_nonsense_is_a_coded_error(name):
    with pytest.raises(OpenNeutronError) as error:
        NeutronTargetSpec(name)
    assert error.value.diagnostic.code in ("ON101", "ON104")
