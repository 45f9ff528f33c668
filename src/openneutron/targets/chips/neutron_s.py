"""The larger relatives: Neutron NPUs that the open converter cannot compile for, and why."""

from openneutron.targets.chip import RefusedTarget

_NEUTRON_S = (
    "{chip} has a Neutron-S, which has its own controller and memory; "
    "this backend compiles for Neutron-C, which the host CPU drives. Kernel selection does not apply to it: "
    "its microcode brings the kernels it uses"
)
_UNTRIED = "{chip} has a Neutron-C of which nothing is published that a compiler could be made from"
_LINUX = "NXP's Neutron-S runtime of the chip's Linux BSP (its driver and firmware)"
_MCU = "NXP's Neutron runtime of the chip's own SDK"

REFUSED = tuple(
    RefusedTarget(name, chip, why.format(chip=chip), runtime)
    for name, chip, why, runtime in (
        ("imx95", "i.MX 95", _NEUTRON_S, _LINUX),
        ("imx943", "i.MX 943", _NEUTRON_S, _LINUX),
        ("imx952", "i.MX 952", _NEUTRON_S, _LINUX),
        ("s32n79", "S32N79", _NEUTRON_S, "NXP's Neutron-S runtime of the S32 SDK"),
        ("s32k5", "S32K5", _UNTRIED, _MCU),
    )
)
