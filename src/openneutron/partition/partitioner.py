"""The partitioner: tags what the NPU takes, and keeps the reason for everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from executorch.exir.backend.backend_details import BackendDetails
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner, PartitionResult
from executorch.exir.backend.utils import WhyNoPartition, tag_constant_data
from executorch.exir.tracer import _default_decomposition_table
from torch.export import ExportedProgram
from torch.fx import Node

from openneutron.diagnostics import REMARK, Reject, fail, nearest
from openneutron.environment.stopwatch import PARTITION, stage
from openneutron.fx import bind_args, op_name, overload, sources, tensor_of
from openneutron.ops import TABLE
from openneutron.ops.common import per_axis
from openneutron.options import CompileOptions, CustomDelegationOptions
from openneutron.partition.clusters import Cluster, Rejected, find_clusters
from openneutron.partition.constants import DEQUANTIZE
from openneutron.partition.levels import group_clusters
from openneutron.targets.spec import NeutronTargetSpec

if TYPE_CHECKING:
    from executorch.exir.backend.compile_spec_schema import CompileSpec

logger = logging.getLogger(__name__)

BACKEND_ID = "NeutronBackend"

# They decompose, but their core form is in the operator table too and has a kernel on the CPU.
_DECOMPOSES_WELL = frozenset(
    {
        "aten.conv1d.default",
        "aten.conv2d.default",
        "aten.conv_transpose1d.default",
        "aten.conv_transpose2d.input",
        "aten.max_pool2d.default",
        "aten.softmax.int",
        "aten.log_softmax.int",
    }
)


_SOFTMAX = {
    "aten.softmax.int": torch.ops.aten._softmax.default,
    "aten.log_softmax.int": torch.ops.aten._log_softmax.default,
}


def rewrite_to_core(node: Node) -> None:
    """Rewrite a convolution or softmax to the core operator it decomposes to.

    exir would trace the whole program anew for it; where nothing else is left to decompose, it need not.
    """
    op = op_name(node)
    dims = {"aten.conv1d.default": 1, "aten.conv2d.default": 2}.get(op)
    if dims is not None:
        args = bind_args(node)
        source = tensor_of(args["input"])
        if source is None or source.dim() != dims + 2:
            return  # without a batch it decomposes to more than one operator
        window = [per_axis(args[k], dims) for k in ("stride", "padding", "dilation")]
        node.target = torch.ops.aten.convolution.default
        operands = (args["input"], args["weight"], args["bias"])
        node.args, node.kwargs = (*operands, *window, False, [0] * dims, args["groups"]), {}
    elif op in _SOFTMAX and (args := bind_args(node))["dtype"] is None:
        node.target = _SOFTMAX[op]
        node.args, node.kwargs = (args["self"], args["dim"], False), {}


class TablePartitioner(Partitioner):
    """Delegates every quantized operator that the operator table takes.

    After partitioning, `rejected` has the reason for each operator left on the CPU, and `partitions` the
    clusters of each partition.
    """

    def __init__(
        self,
        compile_spec: Sequence[CompileSpec] | None = None,
        neutron_target_spec: NeutronTargetSpec | None = None,
        custom_delegation_options: CustomDelegationOptions | None = None,
        post_quantization_state_dict: dict[str, torch.Tensor] | None = None,
        preserve_ops: Sequence[torch._ops.OpOverload] | None = None,
        check_op_support: Callable[[Node], bool] | None = None,
    ):
        super().__init__()
        self.options = (
            CompileOptions() if compile_spec is None else CompileOptions.from_compile_specs(compile_spec)
        )
        self.target = neutron_target_spec or NeutronTargetSpec(
            self.options.config, converter=self.options.converter
        )
        self.custom_delegation_options = custom_delegation_options or CustomDelegationOptions()
        self.delegation_spec = DelegationSpec(BACKEND_ID, self.options.to_compile_specs())
        self.rejected: list[Rejected] = []
        self.partitions: list[list[Cluster]] = []
        # Part of the known API, and not needed: the program itself carries all constants.
        self.post_quantization_state_dict = post_quantization_state_dict
        self.preserve_ops = list(preserve_ops or ())
        self.check_op_support = check_op_support
        self._whole_reasons: dict[str, Reject] = {}  # of operators that are then decomposed, by node name
        self._found: tuple[list[Cluster], list[Rejected]] | None = None  # where nothing has changed since
        self._taken: set[Hashable] = set()  # kinds of clusters that the converter takes
        self._before_edge: list[list[Cluster]] = []  # partitions that were taken before Edge

    @property
    def neutron_target_spec(self) -> NeutronTargetSpec:
        """The target, by the name of its argument."""
        return self.target

    # ----------------------------------------------------------------------------------------------
    # ExecuTorch calls these, in this order

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> ExportedProgram:
        """Give each reader a dequantize step of its own, so that a partition can take the one it needs."""
        graph = exported_program.graph
        for node in [n for n in graph.nodes if op_name(n) in DEQUANTIZE and len(n.users) > 1]:
            for user in list(node.users)[1:]:
                with graph.inserting_after(node):
                    copy = graph.node_copy(node)
                user.replace_input_with(node, copy)
        for node in graph.nodes:
            rewrite_to_core(node)
        return exported_program

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """What is delegated stays whole; what remains on the CPU is decomposed as usual."""
        # A partition of no-ops may yet be refused, and what is kept whole must be delegated.
        clusters, rejected = self._clusters(ep)
        self._keep_reasons(rejected)
        nodes = [
            part.node
            for cluster in clusters
            for part in cluster.parts
            if len(cluster.parts) > 1 or not (cluster.is_idle or op_name(part.node) in _DECOMPOSES_WELL)
        ]
        decomposed = _default_decomposition_table() if nodes else {}
        whole = {
            node.name: op
            for node in nodes
            if (op := overload(node)) is not None and op in decomposed and not _aliases(op)
        }

        def keep(node: Node) -> bool:
            return node.name in whole or overload(node) in self.preserve_ops

        preserved = list(dict.fromkeys([*whole.values(), *self.preserve_ops]))
        # Told that every node of these operators stays whole, exir decomposes once instead of three times.
        calls = (node for node in ep.graph.nodes if node.op == "call_function")
        if all(keep(node) for node in calls if overload(node) in preserved):
            return preserved, None
        return preserved, keep

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag each partition's nodes; the graph is not changed."""
        if others := other_backends():
            fail(
                "ON107",
                ", ".join(others),
                f"another backend named {BACKEND_ID} is imported",
                "Use one of the two in a process: remove the import of executorch.backends.nxp.",
            )
        with stage(PARTITION):
            return self._partition(exported_program)

    def _partition(self, exported_program: ExportedProgram) -> PartitionResult:
        self._check_excluded(exported_program)
        clusters, rejected = self._found or self._clusters(exported_program)
        self.rejected = [Rejected(r.node, r.op, self._first_reason(r)) for r in rejected]
        self.partitions = list(self._before_edge)
        tags: dict[str, DelegationSpec] = {}
        for group in group_clusters(exported_program.graph, clusters):
            if not self.custom_delegation_options.allow_no_op_partitions and all(c.is_idle for c in group):
                reject = Reject("ON206", "The partition would only hold operators that compute nothing")
                self.rejected += [Rejected(p.node, op_name(p.node), reject) for c in group for p in c.parts]
                continue
            tag = f"tag{len(tags)}"
            self.partitions.append(group)
            for cluster in group:
                for node in cluster.members:
                    node.meta["delegation_tag"] = tag
            tags[tag] = self.delegation_spec
        if not may_overwrite_inputs(self.partitions):
            kept = replace(self.options, keep_inputs=True)
            tags = {tag: DelegationSpec(BACKEND_ID, kept.to_compile_specs()) for tag in tags}
        tag_constant_data(exported_program)
        self._explain()
        return PartitionResult(tagged_exported_program=exported_program, partition_tags=tags)

    # ----------------------------------------------------------------------------------------------

    def left_whole(self, program: ExportedProgram) -> list[Node]:
        """What stays on the CPU of a program that has not been decomposed; the reasons are kept."""
        self._found = self._clusters(program)
        self._keep_reasons(self._found[1])
        return [entry.node for entry in self._found[1]]

    def decompositions(self) -> dict[torch._ops.OpOverload, Callable[..., Any]]:
        """What ExecuTorch decomposes, and how."""
        table: dict[Any, Callable[..., Any]] = _default_decomposition_table().materialize()
        return {op: how for op, how in table.items() if op not in self.preserve_ops}

    def take(self, program: ExportedProgram, changed: bool) -> list[tuple[DelegationSpec, list[Node]]]:
        """The nodes of each partition that is taken out of a program; more may be found in what is left.

        If it has not changed since `left_whole` was asked, what was found then is still true.
        """
        self._before_edge = []
        self._found = None if changed else self._found
        result = TablePartitioner.partition(self, program)
        self._found, self._before_edge = None, self.partitions
        nodes = ([node for cluster in group for node in cluster.members] for group in self.partitions)
        return list(zip(result.partition_tags.values(), nodes, strict=True))

    def refuses(self, cluster: Cluster) -> Reject | None:
        """Why what comes after the operator table would refuse a cluster; nothing is known of that here."""
        return None

    def _clusters(self, program: ExportedProgram) -> tuple[list[Cluster], list[Rejected]]:
        """The clusters the user lets us take."""
        clusters, rejected = find_clusters(program, self.options.converter, self.target.target)
        kept = []
        for cluster in clusters:
            computing = [n for part in cluster.parts for n in part.body or (part.node,) if op_name(n)]
            excluded = {node: e for node in computing if (e := self._excluded(node)) is not None}
            reject = next(iter(excluded.values()), None) or self.refuses(cluster)
            if reject is None:
                kept.append(cluster)
                continue
            others = reject
            if excluded:  # an activation is fused into its layer: neither can be computed without the other
                others = replace(reject, reason=f"{reject.reason}, which is computed together with it")
            rejected += [Rejected(n, op_name(n), excluded.get(n, others)) for n in computing]
        return kept, rejected

    def _excluded(self, node: Node) -> Reject | None:
        # What the user wrote may be the operator before it was decomposed: conv2d is convolution here.
        match = next((n for n in self.options.operators_not_to_delegate if n in _names(node)), None)
        if match is not None:
            return Reject("ON204", f"The user excludes {match}", "Remove it from operators_not_to_delegate.")
        if self.check_op_support is not None and not self.check_op_support(node):
            return Reject("ON204", "The user's check_op_support refuses it")
        return None

    def _check_excluded(self, program: ExportedProgram) -> None:
        """A misspelt name would silently exclude nothing; PyTorch's that the program lacks do so rightly."""
        if not self.options.operators_not_to_delegate:
            return
        here = set().union(*map(_names, program.graph.nodes))
        names = here | {s for spec in TABLE for name in spec.names for s in spellings(name)}
        for name in self.options.operators_not_to_delegate:
            if name not in names and not hasattr(torch.ops.aten, name.removeprefix("aten::").split(".")[0]):
                close = nearest(name, (k for k in names if "::" in k and "." not in k)).split(" Known:")[0]
                hint = close if close.startswith("Did") else "openneutron ops lists the operators."
                fail("ON105", "operators_not_to_delegate", f"there is no operator '{name}'", hint)
            if name not in here and not self._before_edge:
                logger.log(
                    REMARK,
                    "operators_not_to_delegate: no operator of the program is %s; the model has none, or it "
                    "does nothing in evaluation (dropout), or is part of a layer's weights (batch norm)",
                    name,
                )

    def _keep_reasons(self, rejected: Sequence[Rejected]) -> None:
        self._whole_reasons |= {r.node.name: r.reject for r in rejected if r.reject.code != "ON202"}

    def _first_reason(self, entry: Rejected) -> Reject:
        """The reason of the operator a node was decomposed from: its parts can only say they are not int8."""
        if entry.reject.code == "ON202":
            for name in (entry.node.name, *_ancestry(entry.node)):
                if name in self._whole_reasons:
                    return self._whole_reasons[name]
        return entry.reject

    def _explain(self) -> None:
        why = WhyNoPartition(logger)
        for entry in self.rejected:
            why(entry.node, str(entry.reject))


def may_overwrite_inputs(partitions: Sequence[Sequence[Cluster]]) -> bool:
    """Whether inputs of the NPU's may die in its memory: there is one partition, and nobody else reads them.

    The memory of several would have to be kept from the first that makes a tensor to the last that reads it.
    """
    if len(partitions) != 1:
        return False
    inside = {node for cluster in partitions[0] for node in cluster.members}
    inputs = {source for node in inside for source in node.all_input_nodes} - inside
    return all(user in inside for node in inputs for user in node.users)


def _ancestry(node: Node) -> list[str]:
    """Names of the nodes that earlier graphs had in this one's place, as torch.export records them."""
    return [source.name for source in sources(node)]


def _ancestor_ops(node: Node) -> set[str]:
    """The operators those nodes called."""
    return {source.target for source in sources(node) if source.target.startswith("aten.")}


# What operators that are taken before ExecuTorch's Edge dialect would be there: users know them by those
# names from its programs, and from lists for its NXP backend.
_IN_EDGE = {
    "aten.adaptive_avg_pool2d.default": ("aten._adaptive_avg_pool2d.default", "aten.mean.dim"),
    "aten.batch_norm.default": ("aten._native_batch_norm_legit_no_training.default",),
    "aten.group_norm.default": ("aten.native_group_norm.default",),
    "aten.layer_norm.default": ("aten.native_layer_norm.default",),
    "aten.pad.default": ("aten.constant_pad_nd.default",),
    "aten.split.Tensor": ("aten.split_copy.Tensor", "aten.split_with_sizes_copy.default"),
    "aten.split_with_sizes.default": ("aten.split_with_sizes_copy.default",),
}


def _names(node: Node) -> set[str]:
    """What the user may call a node's operator, or the one that was decomposed or rewritten into it."""
    names = {op_name(node), *_ancestor_ops(node)}
    names.update(*(_IN_EDGE.get(name, ()) for name in names))
    if op_name(node) == "aten.linear.default":
        names.add("aten.addmm.default" if bind_args(node)["bias"] is not None else "aten.mm.default")
    return set().union(*map(spellings, names))


def _aliases(op: torch._ops.OpOverload) -> bool:
    """Whether the result is a view; ExecuTorch replaces views by copies and cannot keep them whole."""
    return any(r.alias_info is not None for r in op._schema.returns)


def other_backends() -> list[str]:
    """Modules with a backend class of our name that is not ours; ExecuTorch could take it for ours."""
    return sorted(
        c.__module__
        for c in BackendDetails.__subclasses__()
        if c.__name__ == BACKEND_ID and not c.__module__.startswith("openneutron.")
    )


def spellings(name: str) -> set[str]:
    """An operator's name as `aten::add`, `aten::add.Tensor`, `aten.add`, `aten.add.Tensor`, and as ExecuTorch
    names its nodes: `aten_add`, `aten_add_tensor`."""
    if not name:
        return set()
    namespace, op, overload_name = (*name.split("."), "", "")[:3]
    as_node = f"{namespace}_{op}"
    return {
        name,
        f"{namespace}.{op}",
        f"{namespace}::{op}",
        f"{namespace}::{op}.{overload_name}",
        as_node,
        f"{as_node}_{overload_name.lower()}",
    }
