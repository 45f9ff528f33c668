"""i.MX RT700: Neutron N3-64 beside a Cortex-M33, 7.5 MB of SRAM, flash that the NPU cannot read."""

from openneutron.targets.chip import KIB, MIB, Fact, Published, Target
from openneutron.targets.cores import cortex_m33, cortex_m55
from openneutron.targets.cost import CostModel

_KNOWN_BEFORE = "known when the form of the estimate was chosen"
_LOGS = "NXP, published logs of inferences on i.MX RT700 at 324 MHz"
_RUNNER = "NXP mcuxsdk-examples, eiq_examples/executorch_modelrunner, readme"
_TFLM = "NXP mcuxsdk-examples, eiq_examples/tflm_modelrunner, readme"
_CIFARNET = "NXP mcuxsdk-examples, eiq_examples/executorch_cifarnet, readme"

TARGETS = (
    Target(
        name="imxrt700",
        number=1,
        chip="i.MX RT700",
        generation="N3",
        units=1,
        pipes=8,
        macs_per_pipe=8,
        frequency_hz=324_000_000,
        sram_bytes=15 * MIB // 2,
        cost=CostModel(),  # its defaults were fitted to this chip's times
        cores=(
            cortex_m33("mps2-an505.ld", flash_bytes=8 * MIB, sram_bytes=7680 * KIB),
            cortex_m55("mps3-an547.ld", flash_bytes=8 * MIB, sram_bytes=7680 * KIB),
        ),
        facts=(
            Fact(
                "8 pipes of 8 multipliers, one core, no controller of its own", "NXP: N3-64, eIQ Neutron SDK"
            ),
            Fact("324 MHz, NPU and CPU", "NXP's logs; the data sheet allows 325"),
            Fact("7.5 MiB of SRAM", 'data sheet: "7.5 MB"'),
            Fact("the NPU cannot read flash: the CPU copies weights", "NXP: weight prefetching is for RT700"),
            Fact("flash gives 1 GB/s", "data sheet: xSPI, 16 lanes, 250 MHz, both edges; a peak"),
            Fact(
                "a Cortex-M55 is emulated too: the chip has none", "for firmware of other chips", assumed=True
            ),
        ),
        published=(
            Published("cifarnet", 1027, _LOGS, fitted=True),
            Published("dscnn", 576, _LOGS, fitted=True),
            Published("mobilenet_v1_025_128", 2759, _LOGS, fitted=True),
            Published("mobilenet_v1", 53_376, f"{_LOGS}; {_KNOWN_BEFORE}", weights_in_flash=True),
            Published("cifarnet", 1072, f"{_CIFARNET}, FRDM-IMXRT700; int8 inputs and outputs"),
            Published("cifarnet", 848, f"{_RUNNER}; a newer SDK"),
            Published(
                "cifarnet",
                11_422,
                f"{_CIFARNET}, an early SDK",
                layer="with float inputs and outputs",
                set_aside="its CPU kernels are not known, and a later SDK took a tenth of it",
            ),
            Published("dscnn", 485, f"{_TFLM}; clock not stated", layer="without its softmax"),
            Published("dscnn", 17, f"{_TFLM}; clock not stated", on="cpu", layer="SOFTMAX 0"),
        ),
        nxp_libraries="rt700/cm33",
        nxp_board="mimxrt700evk",
        nxp_core="cm33_core0",
    ),
)
