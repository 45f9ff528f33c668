"""What compiling a model yields: the program's bytes, and all that a summary or a report wants to know."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.backend.utils import is_same_node
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch._subclasses.fake_tensor import FakeTensorMode, _DispatchCacheBypassEntry
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from openneutron.compiler.emit.result import CompiledGraph
from openneutron.converter.kernel_selection import SUFFIX, kernel_selection_code
from openneutron.converter.protocol import Partition
from openneutron.diagnostics import Reject, fail
from openneutron.environment.stopwatch import EXIR, PACKAGE, stage
from openneutron.estimate.cpu import explain_cpu, node_macs
from openneutron.estimate.timeline import BORDER_KINDS, NPU_KINDS, Event, program_timeline, total
from openneutron.files import write_atomically
from openneutron.fx import copy_graph
from openneutron.litert.ir import Graph
from openneutron.options import CompileOptions
from openneutron.package.arena import ArenaPlanning
from openneutron.package.pte import ProgramInfo, parse_program
from openneutron.package.seal import remember, seal
from openneutron.package.state import start_from_initial_values
from openneutron.partition.clusters import Rejected
from openneutron.partition.partitioner import TablePartitioner
from openneutron.quantize.convert import forget_devices
from openneutron.targets.chip import Target
from openneutron.targets.table import find_target

if TYPE_CHECKING:
    from executorch.devtools.etrecord import ETRecord


@dataclass(frozen=True)
class Verification:
    """Outcome of comparing the program with the quantized model."""

    worst: float | None = None  # the largest distance, as a part of what rounding explains
    skipped: str = ""  # why it was not done

    def __str__(self) -> str:
        return f"skipped: {self.skipped}" if self.skipped else f"passed at {self.worst:.0%} of the bound"


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled model."""

    pte: bytes = field(repr=False)
    options: CompileOptions
    partitions: tuple[Partition, ...] = field(repr=False)
    rejected: tuple[Rejected, ...] = field(repr=False)
    npu_nodes: tuple[str, ...]  # operators the NPU computes, by their names in the Edge program
    macs_cpu: int
    methods: dict[str, ExportedProgram] = field(repr=False)  # as Edge programs with calls of the delegates
    info: ProgramInfo = field(repr=False)
    delegated: bool = True  # whether it was to be delegated at all
    etrecord: ETRecord | None = field(default=None, repr=False)  # if it was asked for
    verification: Verification | None = None

    @property
    def edge(self) -> ExportedProgram:
        """The first method, of most programs the only one."""
        return next(iter(self.methods.values()))

    @property
    def target(self) -> Target:
        """What it was compiled for."""
        return find_target(self.options.config, self.options.converter)

    @property
    def graphs(self) -> list[Graph]:
        """The LiteRT graph of every partition."""
        return [p.lowered.graph for p in self.partitions]

    @property
    def compiled(self) -> list[CompiledGraph]:
        """What the open compiler made of every partition; the eiq converter tells nothing."""
        return [p.converted.compiled for p in self.partitions if p.converted.compiled is not None]

    @property
    def scratch_bytes(self) -> int:
        """Memory of the delegates beyond inputs and outputs; they run one after the other and share it."""
        return max((p.converted.beyond_io_bytes for p in self.partitions), default=0)

    @property
    def prefetch_bytes(self) -> int:
        """SRAM for prefetched weights, shared likewise."""
        return max((p.converted.prefetch_bytes for p in self.partitions), default=0)

    @property
    def states(self) -> list[tuple[str, int]]:
        """What the delegates remember from run to run: names, and bytes."""
        return [(state.label, state.bytes) for graph in self.compiled for state in graph.program.states]

    @property
    def state_bytes(self) -> int:
        """The memory for it: each delegate has its own."""
        return sum(graph.state_bytes for graph in self.compiled)

    @property
    def shared_states(self) -> list[tuple[str, int]]:
        """What methods remember together, in ExecuTorch's planned memory: names, and bytes."""
        sizes_by_name: dict[str, list[int]] = {}
        for program in self.methods.values():
            signature = program.graph_signature
            for node in program.graph.find_nodes(op="placeholder"):
                target = signature.inputs_to_buffers.get(node.name)
                if target in signature.buffers_to_mutate.values():
                    sizes_by_name.setdefault(str(target), []).append(node.meta["val"].nbytes)
        return [(name, sizes[0]) for name, sizes in sizes_by_name.items() if len(sizes) > 1]

    @property
    def weights_bytes(self) -> int:
        """Weights of all delegates."""
        return sum(len(p.converted.weights) for p in self.partitions)

    @property
    def planned_bytes(self) -> int:
        """What ExecuTorch plans for the program's own tensors, its inputs and outputs among them."""
        return max((m.planned_bytes for m in self.info.methods.values()), default=0)

    @property
    def io_bytes(self) -> int:
        """The program's inputs and outputs."""
        return max((m.io_bytes for m in self.info.methods.values()), default=0)

    @property
    def reserve_bytes(self) -> int:
        """The least SRAM to reserve for inputs, outputs and activations together, weights aside."""
        return max((m.reserve_bytes for m in self.info.methods.values()), default=0)

    @property
    def fits(self) -> bool | None:
        """Whether activations, the program's tensors and weights (unless left in flash) fit into the SRAM.

        None: how much the chip has is not known here.
        """
        in_flash = self.options.fetch_constants_to_sram or self.target.reads_flash
        weights = self.prefetch_bytes if in_flash else self.weights_bytes
        need = self.reserve_bytes + self.state_bytes + weights
        sram = self.options.sram_bytes or self.target.sram_bytes
        return need <= sram if sram else None

    @property
    def kernels(self) -> list[str]:
        """The kernels the delegates need."""
        used = {kernel for graph in self.compiled for kernel in graph.kernels}
        return [kernel.name for kernel in sorted(used)]

    @property
    def kernel_selections(self) -> list[str]:
        """The kernel-selection code of the program, if it was asked for: one file for all partitions.

        What is in NXP's own files is not public, so those of the eiq converter stay one per partition.
        """
        codes = [p.converted.kernel_selection_code for p in self.partitions]
        if len(self.compiled) == len(self.partitions) > 0 and None not in codes:
            kernels = {kernel for graph in self.compiled for kernel in graph.kernels}
            return [kernel_selection_code(kernels, self.partitions[0].converted.converter, self.target.name)]
        return [code for code in codes if code is not None]

    @cached_property
    def timeline(self) -> tuple[Event, ...]:
        """What the program does, step by step, with estimated cycles; empty for the eiq converter."""
        return program_timeline(self.methods, self.target)

    def cycles(self, *kinds: str) -> int:
        """Estimated cycles of the steps of these kinds; of the whole program if none are given."""
        if not kinds:
            return total(self.timeline)
        return sum(event.advance for event in self.timeline if event.kind in kinds)

    def save(self, path: Path | str) -> Path:
        """Write the .pte, and beside it the kernel selection; nothing half-written is ever seen."""
        path = Path(path)
        write_atomically(path, self.pte)
        codes = self.kernel_selections
        for number, code in enumerate(codes):
            part = f"_{number}" if len(codes) > 1 else ""
            write_atomically(path.with_name(f"{path.stem}{part}{SUFFIX}"), code.encode())
        return path

    def save_etrecord(self, path: Path | str) -> Path:
        """Write the ETRecord, with which ExecuTorch's Inspector names the nodes behind every event."""
        if self.etrecord is None:
            fail("ON104", "etrecord", "the program was compiled without one",
                 "Compile with etrecord=True or use_profiling=True; a LiteRT model has none.")  # fmt: skip
        buffer = io.BytesIO()
        self.etrecord.save(buffer)
        write_atomically(Path(path), buffer.getvalue())
        return Path(path)

    def summary(self, path: Path | str | None = None) -> dict[str, Any]:
        """The figures as plain data: what `openneutron compile --json` prints."""
        return {
            "program": None if path is None else str(path),
            "target": self.target.name,
            "converter": self.options.converter,
            "partitions": len(self.partitions),
            "npu_nodes": len(self.npu_nodes),
            "cpu_nodes": [entry.as_dict() for entry in self.rejected],
            "macs_npu": sum(graph.macs for graph in self.compiled),
            "macs_cpu": self.macs_cpu,
            "scratch_bytes": self.scratch_bytes,
            "sram_prefetch_bytes": self.prefetch_bytes,
            "state_bytes": self.state_bytes,
            "states": [{"name": name, "bytes": nbytes} for name, nbytes in self.states],
            "shared_states": [{"name": name, "bytes": nbytes} for name, nbytes in self.shared_states],
            "weights_bytes": self.weights_bytes,
            "planned_bytes": self.planned_bytes,
            "io_bytes": self.io_bytes,
            "reserve_bytes": self.reserve_bytes,
            "program_bytes": len(self.pte),
            "fits": self.fits,
            "cycles_estimated": self.cycles(),
            "cycles_npu": self.cycles(*NPU_KINDS),
            "cycles_cpu": self.cycles("cpu"),
            "cycles_borders": self.cycles(*BORDER_KINDS),
            "cycles_portable_kernels": total(self.timeline, portable=True),
            "kernels": self.kernels,
            "cpu_kernels": sorted({entry.kernel for entry in self.rejected}),
            "methods": list(self.methods),
            "verified": None if self.verification is None else str(self.verification),
        }


def describe(
    pte: bytes,
    methods: dict[str, ExportedProgram],
    partitioners: Mapping[str, TablePartitioner],
    npu_nodes: tuple[str, ...] | None = None,
    not_asked: Reject | None = None,
    etrecord: ETRecord | None = None,
) -> CompiledProgram:
    """Collect what is known of a program whose methods the partitioners have divided, or with these nodes.

    `not_asked` is the reason for everything on the CPU if nothing was to be delegated.
    """
    if npu_nodes is None:
        clusters = (
            c for partitioner in partitioners.values() for group in partitioner.partitions for c in group
        )
        npu_nodes = tuple(c.node.name for c in clusters)
    modules = {name: program.graph_module for name, program in methods.items()}
    on_cpu = [
        entry
        for name, module in modules.items()
        for entry in explain_cpu(module, partitioners[name].rejected, not_asked)
    ]
    return CompiledProgram(
        pte=pte,
        options=next(iter(partitioners.values())).options,
        partitions=tuple(_partition(lowered) for m in modules.values() for lowered in delegates(m)),
        rejected=tuple(on_cpu),
        npu_nodes=npu_nodes,
        macs_cpu=sum(node_macs(entry.node) for entry in on_cpu),
        methods=methods,
        info=parse_program(pte, "program", sealed=True),
        delegated=not_asked is None,
        etrecord=etrecord,
    )


def package_program(
    edge: EdgeProgramManager,
    partitioners: Mapping[str, TablePartitioner],
    npu_nodes: tuple[str, ...] | None = None,
    not_asked: Reject | None = None,
) -> CompiledProgram:
    """Serialize a lowered program, seal it, and describe what is in it."""
    with stage(PACKAGE):
        # to_executorch changes the programs it is given
        kept = {name: copy_graph(edge.exported_program(name)) for name in partitioners}
        with stage(EXIR):
            several_remember = len(kept) > 1 and any(
                program.graph_signature.buffers_to_mutate for program in kept.values()
            )
            try:
                config = ExecutorchBackendConfig(
                    passes=start_from_initial_values(kept.values()),
                    # Methods work in one memory: what they remember lies beside it.
                    memory_planning_pass=ArenaPlanning(share_mutable_buffers=several_remember),
                )
                with torch.no_grad():  # it runs writes of buffers, which gradients forbid
                    program = edge.to_executorch(config)
            except GuardOnDataDependentSymNode:
                fail("ON205", "program",
                     "ExecuTorch cannot write a tensor whose size along an inner dimension the data decides",
                     "Choose along the first dimension, or use torch.where, not x[mask].")  # fmt: skip
            except RuntimeError as error:
                if "finite upper bound" in str(error):
                    fail("ON205", "program", "the data decide the size of a tensor, and nothing bounds it",
                         "Give it a fixed size: torch.bincount, say, is a sum of one_hot.")  # fmt: skip
                _, _, missing = str(error).partition("Missing out variants: ")
                if not missing:
                    raise
                fail("ON513", "program", f"ExecuTorch has no kernel for {missing.strip('{}')}",
                     "Write the model without the operator.")  # fmt: skip
        forget_models()
        pte = remember(seal(program.buffer))
        return describe(pte, kept, partitioners, npu_nodes, not_asked, program._etrecord)


def forget_models() -> None:
    """Let go of what was compiled: torch, torchao and ExecuTorch remember it as long as the process lives."""
    is_same_node.cache_clear()
    forget_devices()
    cache = FakeTensorMode.cache
    for key, entry in list(cache.items()):
        if key.key[0] is executorch_call_delegate or isinstance(entry, _DispatchCacheBypassEntry):
            del cache[key]


def by_method(value: Any) -> dict[str, Any]:
    """One value per method; a value that is no dictionary belongs to the method `forward`."""
    return dict(value) if isinstance(value, Mapping) else {"forward": value}


def delegates(module: GraphModule) -> list[LoweredBackendModule]:
    """The delegates of a lowered program in the order in which they are called."""
    calls = [n for n in module.graph.nodes if n.target is executorch_call_delegate]
    return [getattr(module, n.args[0].target) for n in calls]


def inside(lowered: LoweredBackendModule) -> ExportedProgram:
    """The operators a delegate computes."""
    info = (lowered.meta or {}).get("_delegate_info_meta")
    return getattr(info, "inside", None) or lowered.original_module


def _partition(lowered: LoweredBackendModule) -> Partition:
    info = lowered.meta["_delegate_info_meta"]
    assert isinstance(info, Partition), f"{lowered.backend_id} is not ours"
    return info
