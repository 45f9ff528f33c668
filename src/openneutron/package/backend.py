"""NeutronBackend: what ExecuTorch calls to turn a partition into the bytes of a delegate."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import executorch.kernels.quantized  # noqa: F401  the out variants a quantized program is written with
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram

from openneutron.compiler.emit.result import CallInfo
from openneutron.converter import ConvertedModel, find_converter
from openneutron.converter.kernel_selection import SUFFIX
from openneutron.converter.protocol import Partition
from openneutron.diagnostics import Reject
from openneutron.environment.stopwatch import LITERT, MICROCODE, stage
from openneutron.files import make_folder, write_atomically
from openneutron.litert.file import write
from openneutron.lower.convert import Lowered, lower_cluster, lower_program
from openneutron.options import CompileOptions
from openneutron.package.payload import AS_IS, CHANNELS_LAST, Port, build_payload, pack
from openneutron.partition.clusters import Cluster, kind_of
from openneutron.partition.partitioner import BACKEND_ID, TablePartitioner, other_backends
from openneutron.targets.table import find_target

logger = logging.getLogger(__name__)


class NeutronPartitioner(TablePartitioner):
    """Delegates every quantized operator the target can compute: the table and the kernels take it.

    After partitioning, `rejected` has the reason for each operator left on the CPU, and `partitions` the
    clusters of each partition.
    """

    def refuses(self, cluster: Cluster) -> Reject | None:
        """Why the converter would refuse a cluster, by the limits of its kernels."""
        kind = kind_of(cluster)
        if kind is not None and kind in self._taken:
            return None
        refused = find_converter(self.options.converter).refuses(lower_cluster(cluster))
        if refused is None and kind is not None:
            self._taken.add(kind)
        return refused


class NeutronBackend(BackendDetails):
    """The delegate; ExecuTorch finds it by its class name, which is the delegate id in the .pte."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Lower one partition to LiteRT, convert it, and pack the payload."""
        options = CompileOptions.from_compile_specs(compile_specs)
        if options.keep_inputs is None:  # who plans the memory is not known here
            options = replace(options, keep_inputs=True)
        target = find_target(options.config, options.converter)
        with stage(LITERT):
            lowered = lower_program(
                edge_program, options.converter, options.use_neutron_for_format_conversion, target
            )
            litert = write(lowered.graph)
        with stage(MICROCODE):
            converted = find_converter(options.converter).convert(litert, options, target)
        if options.intermediates_dir:
            keep_intermediates(Path(options.intermediates_dir), edge_program, litert, converted)
        if options.kernel_selection_dir and converted.kernel_selection_code:
            keep_kernel_selection(Path(options.kernel_selection_dir), edge_program, converted)
        payload = build_payload(converted, *_ports(lowered), len(lowered.graph.given), options.use_profiling)
        return PreprocessResult(
            processed_bytes=pack(payload),
            debug_handle_map=_debug_handles(edge_program, lowered, converted),
            _delegate_info_meta=Partition(lowered, litert, converted),
        )


assert NeutronBackend.__name__ == BACKEND_ID

if other_backends():
    warnings.warn(
        f"another backend named {BACKEND_ID} is imported ({', '.join(other_backends())}); ExecuTorch finds "
        "backends by class name, so lowering with both imported is refused",
        stacklevel=2,
    )


def _ports(lowered: Lowered) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    def ports(flags: tuple[bool, ...]) -> tuple[Port, ...]:
        return tuple(Port(i, CHANNELS_LAST if last else AS_IS) for i, last in enumerate(flags))

    return ports(lowered.input_channels_last), ports(lowered.output_channels_last)


def _debug_handles(
    program: ExportedProgram, lowered: Lowered, converted: ConvertedModel
) -> dict[int, tuple[int, ...]]:
    """For each kernel call, by its number, the handles of its nodes; ExecuTorch's tools name them so."""
    all_handles = {n.name: n.meta.get("debug_handle") for n in program.graph.nodes}
    handles = {name: handle for name, handle in all_handles.items() if handle is not None}
    if converted.compiled is None:  # the eiq converter does not tell what it made of which node
        return {i: (handle,) for i, handle in enumerate(sorted(set(handles.values())))}
    sources = {t.name: op.origin for op in lowered.graph.ops for t in op.outputs}
    calls = converted.compiled.calls
    result: dict[int, tuple[int, ...]] = {}
    for i, call in enumerate(calls):
        # The converter was given bytes: it knows operators by the tensors they write.
        nodes = [node for tensor in call.origin for node in sources.get(tensor, (tensor,))]
        result[i] = tuple(sorted({handles[node] for node in nodes if node in handles}))
    return _with_neighbours(result, calls)


def _with_neighbours(
    found: dict[int, tuple[int, ...]], calls: Sequence[CallInfo]
) -> dict[int, tuple[int, ...]]:
    """A transpose at the border came from no node: it belongs to who reads its result, or made its input."""
    result = dict(found)
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        for names, index in ((call.reads, readers), (call.writes, writers)):
            for name in names:
                index.setdefault(name, []).append(i)
    for order, names_of, index in (
        (reversed(range(len(calls))), lambda c: c.writes, readers),  # backwards: readers come later
        (range(len(calls)), lambda c: c.reads, writers),
    ):
        for i in order:
            if not result[i]:
                others = (j for name in names_of(calls[i]) for j in index.get(name, ()) if j != i)
                result[i] = tuple(sorted({handle for j in others for handle in result[j]}))
    return result


def keep_intermediates(
    folder: Path, program: ExportedProgram, litert: bytes, converted: ConvertedModel
) -> None:
    """Write the LiteRT graph before and after conversion, named as ExecuTorch's NXP backend names them."""
    make_folder(folder)
    tags = {n.meta.get("delegation_tag") for n in program.graph.nodes} - {None}
    stem = tags.pop() if len(tags) == 1 else _numbered(folder, program, "_pure.et.tflite", "tag{number}")
    write_atomically(folder / f"{stem}_pure.et.tflite", litert)
    if converted.neutron_litert:
        write_atomically(folder / f"{stem}_neutron.et.tflite", converted.neutron_litert)


def keep_kernel_selection(folder: Path, program: ExportedProgram, converted: ConvertedModel) -> None:
    """Write a partition's kernel selection, for callers that lower and serialize with ExecuTorch itself."""
    assert converted.kernel_selection_code is not None
    file = folder / f"{_numbered(folder, program, SUFFIX)}{SUFFIX}"
    write_atomically(file, converted.kernel_selection_code.encode())
    logger.info("kernel selection: %s; `openneutron merge-kernels` makes one file of several", file)


def _numbered(folder: Path, program: ExportedProgram, suffix: str, form: str = "{number}_{first}") -> str:
    """A stem no file of the folder has: the partition's number, and its first operator."""
    make_folder(folder)
    first = next((n.name for n in program.graph.nodes if n.op == "call_function"), "partition")
    number = len(list(folder.glob(f"*{suffix}")))
    return form.format(number=number, first=re.sub(r"\W+", "_", first))


__all__ = ["NeutronBackend", "NeutronPartitioner"]
