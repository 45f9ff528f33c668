"""What compiling yields: the bytes, and everything a report wants to know about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from openneutron.compiler.microcode.cost import Cost
from openneutron.compiler.microcode.format import ALIGNMENT, Kernel, KernelCall, Program, Region


@dataclass(frozen=True)
class CallInfo:
    """One kernel call with where it came from: the LiteRT operator and the source nodes behind it."""

    call: KernelCall
    operator: str
    origin: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True)
class BufferInfo:
    """A buffer of SCRATCH, PREFETCH or STATE: where it lies, from which call to which, and what it holds."""

    name: str
    region: Region
    offset: int
    nbytes: int
    first_call: int
    last_call: int
    tensors: tuple[str, ...]
    rows: int = 0  # of a rolling buffer of a cascade: it never holds more rows of its tensor


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled LiteRT graph."""

    microcode: bytes = field(repr=False)
    weights: bytes = field(repr=False)
    program: Program = field(repr=False)
    calls: tuple[CallInfo, ...] = field(repr=False)
    buffers: tuple[BufferInfo, ...] = field(repr=False)
    scratch_bytes: int
    scratch_bound: int  # the most bytes live at once in this order: no placement is smaller
    prefetch_bytes: int
    cycles: int  # estimated

    @property
    def state_bytes(self) -> int:
        """Memory that survives from run to run."""
        return self.program.state_bytes

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels the program needs."""
        return tuple(self.program.kernels)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of all calls."""
        return sum(info.cost.macs for info in self.calls)

    @property
    def reserve_bytes(self) -> int:
        """The least memory for inputs, outputs and activations together, each aligned."""
        ports = (*self.program.inputs, *self.program.outputs)
        return self.scratch_bytes + sum(-(-d.bytes // ALIGNMENT) * ALIGNMENT for d in ports if not d.place)

    @property
    def beyond_io_bytes(self) -> int:
        """Scratch memory beyond the inputs and outputs that lie in it."""
        inside = sum(d.bytes for d in (*self.program.inputs, *self.program.outputs) if d.place)
        return max(0, self.scratch_bytes - inside)

    @property
    def sram_bytes(self) -> int:
        """SRAM beyond inputs and outputs: activations, states, and weights or where they are fetched to."""
        return self.beyond_io_bytes + self.state_bytes + (self.prefetch_bytes or len(self.weights))
