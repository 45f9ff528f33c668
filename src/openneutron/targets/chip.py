"""What a chip's file says: the NPU, memories, clocks, cores, costs, limits and published times."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.targets.cores import Core
from openneutron.targets.cost import CostModel

KIB, MIB = 1024, 1024 * 1024
INVENTED = 0xFFFF  # the number in a microcode of every chip that a user made up


@dataclass(frozen=True)
class Fact:
    """Something the compiler or the estimate rests on, and where it comes from."""

    text: str
    source: str  # a public document by its name, or why it is assumed
    assumed: bool = False


@dataclass(frozen=True)
class Published:
    """A time that somebody measured on the chip and published."""

    network: str  # one of `openneutron.bench.networks`
    microseconds: float
    source: str  # a public document by its name
    on: str = "npu"  # npu: a whole inference with the NPU; cpu: on the CPU alone
    layer: str = ""  # of the network, where the time is not that of all of it
    fitted: bool = False  # whether parameters of the estimate were fitted to it
    set_aside: str = ""  # why its error is shown but does not count for the band
    weights_in_flash: bool = False


@dataclass(frozen=True)
class ConverterLimits:
    """The largest sizes that NXP publishes for its own converter; the open converter has no such limits."""

    kernel: int = 4096
    stride: int = 4096
    dilation: int = 4096
    window: int = 65535  # kH * kW * input channels, these rounded up to the multipliers of a pipe
    softmax_channels: int = 2040
    softmax_rows: int = 4096
    softmax_elements: int = 524288


@dataclass(frozen=True)
class Target:
    """An NPU this backend compiles for. Sizes are the chip's; an application may leave the NPU less."""

    name: str
    number: int  # in a microcode; never used for another chip
    chip: str
    generation: str
    units: int
    pipes: int  # pipelines of one unit: output channels computed side by side
    macs_per_pipe: int  # input channels multiplied and added per pipeline and cycle
    frequency_hz: int
    sram_bytes: int
    cost: CostModel
    cores: tuple[Core, ...]  # that firmware is built for; the first is the chip's own
    flash_bytes: int = 0  # on the chip; 0: a board has as much as it likes
    reads_flash: bool = False  # whether the NPU reads weights where they lie in flash; else they are copied
    limits: ConverterLimits = ConverterLimits()
    facts: tuple[Fact, ...] = ()
    published: tuple[Published, ...] = ()
    nxp_libraries: str = ""  # the folder of the chip in NXP's SDK, below middleware/eiq/neutron
    nxp_board: str = ""  # the board of NXP's SDK that an exported project names
    nxp_core: str = ""  # and the core of it
    runtime: str = "NXP's Neutron runtime of MCUXpresso SDK"  # that programs of NXP's converter run on
    known: bool = True  # False: an SDK's own target, of which nothing is known here but the name
    invented: str = ""  # what a user changed, of a chip that does not exist

    @property
    def num_macs(self) -> int:
        """Multiply-accumulates of the whole NPU per cycle."""
        return self.units * self.pipes * self.macs_per_pipe

    @property
    def hw_version(self) -> str:
        """The NPU's name in NXP's scheme, e.g. N3-64."""
        if not self.known:
            return "not known here"
        return f"{'invented ' if self.invented else ''}{self.generation}-{self.num_macs}"


@dataclass(frozen=True)
class RefusedTarget:
    """A chip with a Neutron NPU that cannot be compiled for, and why."""

    name: str
    chip: str
    reason: str
    runtime: str  # what a program of NXP's converter for it runs on
