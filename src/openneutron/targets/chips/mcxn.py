"""MCX N94x and N54x: Neutron N1-16 beside a Cortex-M33, with flash on the chip that the NPU reads."""

from dataclasses import replace

from openneutron.targets.chip import KIB, MIB, Fact, Published, Target
from openneutron.targets.cores import cortex_m33
from openneutron.targets.cost import CostModel

_ZOO = "NXP eiq-model-zoo, release 1.4, MCX N947"
_BENCHMARK = "NXP dm-mcxn947-npu-vs-tensorflm-benchmark, MCX N947"
_CIFARNET = "NXP, published times of CifarNet on MCX N947"
_LAYERS = "NXP mcuxsdk-examples, eiq_examples/tflm_modelrunner, readme"
_DISAGREES = (
    "3.4 to 4.3 ms above NXP's model zoo for each of four networks, small or large: "
    "something of fixed length is measured with them"
)

_N94X = Target(
    name="mcxn94x",
    number=2,
    chip="MCX N94x",
    generation="N1",
    units=1,
    pipes=4,
    macs_per_pipe=4,
    frequency_hz=150_000_000,
    sram_bytes=512 * KIB,
    flash_bytes=2 * MIB,
    reads_flash=True,
    # Flash: 16 bytes in four cycles, more than the NPU was seen to read. Nothing is fitted to this chip.
    cost=CostModel(
        flash_bytes_per_second=600_000_000,
        cpu_frequency_hz=150_000_000,
        sources=(
            (
                "flash_bytes_per_second",
                "assumption, not measured: 128 bits with three wait states at 150 MHz",
            ),
            ("cpu_frequency_hz", "data sheet: the Cortex-M33's clock"),
        ),
    ),
    cores=(cortex_m33("mcxn.ld", flash_bytes=2 * MIB, sram_bytes=512 * KIB, code_bytes=768 * KIB),),
    facts=(
        Fact(
            "16 multiply-accumulates a cycle, one core, no controller of its own",
            "NXP: N1-16, 4.8 GOPS at 150 MHz",
        ),
        Fact("in 4 pipes of 4", "a square as in N3-64; the published times fit", assumed=True),
        Fact("150 MHz, NPU and CPU", "data sheet"),
        Fact("512 KiB of SRAM, 2 MiB of flash", "data sheet"),
        Fact("all SRAM in one piece", "the chip has 96 KiB of it at another address", assumed=True),
        Fact(
            "the NPU reads weights in the chip's flash",
            "NXP: models are placed there; weight prefetching is for RT700 only",
            assumed=True,
        ),
        Fact(
            "it reads them as fast as SRAM",
            "flash gives 4 bytes a cycle, the NPU was seen to read 3",
            assumed=True,
        ),
        Fact(
            "costs of a call and of a tile are those of N3-64", "nothing is fitted to this chip", assumed=True
        ),
        Fact("limits of NXP's converter are those for RT700", "none are published for N1", assumed=True),
    ),
    published=(
        Published("resnet8", 6310, _ZOO),
        Published("dscnn", 3329, _ZOO),
        Published("mobilenet_v1_vww", 6384, _ZOO),
        Published("autoencoder", 797, _ZOO),
        Published("cifarnet", 7130, _CIFARNET),
        Published("resnet8", 10_600, _BENCHMARK, set_aside=_DISAGREES),
        Published("dscnn", 7164, _BENCHMARK, set_aside=_DISAGREES),
        Published("mobilenet_v1_vww", 10_169, _BENCHMARK, set_aside=_DISAGREES),
        Published("autoencoder", 4174, _BENCHMARK, set_aside=_DISAGREES),
        Published("resnet8", 266_700, _ZOO, on="cpu"),
        Published("dscnn", 62_000, _ZOO, on="cpu"),
        Published("mobilenet_v1_vww", 194_300, _ZOO, on="cpu"),
        Published("autoencoder", 5600, _ZOO, on="cpu"),
        Published("dscnn", 8257, _LAYERS, on="cpu", layer="CONV_2D 0"),
        Published("dscnn", 4019, _LAYERS, on="cpu", layer="DEPTHWISE_CONV_2D 0"),
        Published("dscnn", 7374, _LAYERS, on="cpu", layer="CONV_2D 1"),
        Published("dscnn", 350, _LAYERS, on="cpu", layer="AVERAGE_POOL_2D 0"),
        Published("dscnn", 25, _LAYERS, on="cpu", layer="SOFTMAX 0"),
    ),
)

TARGETS = (_N94X, replace(_N94X, name="mcxn54x", number=3, chip="MCX N54x", published=()))
