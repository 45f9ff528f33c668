"""Clusters: an operator with the quantization around it, as one value.

    dequantize -> operator [-> activation] -> quantize

is what the NPU computes in integers; without an operator between them, the two change the parameters of a
tensor. Every operator of a program is either part of a cluster or has a reason why it is not.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.executorch_call_delegate import executorch_call_delegate
from torch.export import ExportedProgram
from torch.fx import Node

from openneutron.diagnostics import Reject
from openneutron.fx import bind_args, op_name, overload, tensor_of
from openneutron.litert.ir import Activation, Quant, Tensor
from openneutron.ops import find
from openneutron.ops.activation import clamp_bounds
from openneutron.ops.common import activation_of
from openneutron.ops.shape import IDENTITY
from openneutron.ops.spec import OPEN, Call, Lowering, OpSpec, Value, Weighted
from openneutron.partition.constants import (
    DEQUANTIZE,
    DEQUANTIZE_TENSOR,
    QUANTIZE_TENSOR,
    Constants,
    per_tensor_quant,
)
from openneutron.partition.float_states import FloatStates, moved_from, moves
from openneutron.passes.patterns import only_user
from openneutron.targets.chip import Target
from openneutron.targets.table import DEFAULT_TARGET, TARGETS


def _lower_requantize(at: Lowering, call: Call) -> Tensor:
    assert call.out.quant is not None
    return at.build.requantize(at(call.input), call.out.quant)


# Not in the operator table: it is no operator of a model, but comes with quantization.
REQUANTIZE = OpSpec((QUANTIZE_TENSOR,), None, _lower_requantize, open_only=True)


@dataclass(frozen=True, eq=False)
class Part:
    """An operator of a cluster: the node that computes, everything that belongs to it, and its call."""

    node: Node
    spec: OpSpec
    call: Call
    inputs: tuple[Node, ...]  # dequantize nodes of activations, and nodes of constants
    body: tuple[Node, ...]  # the operator, getitem, activation
    outputs: tuple[Node, ...]  # quantize nodes; none where the result is integers

    @property
    def last(self) -> Node:
        """The node that holds its result in float."""
        return self.body[-1]


@dataclass(frozen=True, eq=False)
class Cluster:
    """One quantized operator, or several with no quantization between them: an island."""

    parts: tuple[Part, ...]
    is_island: bool = False  # computed in float; of one operator, if it makes a new state of an old one

    @property
    def node(self) -> Node:
        """The node that computes, of several the last one."""
        return self.parts[-1].node

    @property
    def body(self) -> tuple[Node, ...]:
        """The nodes that compute."""
        return tuple(node for part in self.parts for node in part.body)

    @property
    def members(self) -> tuple[Node, ...]:
        """Every node of the cluster."""
        return tuple(node for part in self.parts for node in (*part.inputs, *part.body, *part.outputs))

    @property
    def is_idle(self) -> bool:
        """Whether it computes nothing, or only other parameters: not worth a partition of its own."""
        return all(part.spec.no_op or part.spec is REQUANTIZE for part in self.parts)


@dataclass(frozen=True, eq=False)
class Rejected:
    """A node that stays on the CPU, and why."""

    node: Node
    op: str  # in the model
    reject: Reject

    @property
    def kernel(self) -> str:
        """What it runs as: the same operator, or one of the Cortex-M dialect."""
        return op_name(self.node) or str(self.node.target)

    @property
    def int8(self) -> bool:
        """Whether it computes in int8."""
        value = tensor_of(self.node)
        return value is not None and value.dtype == torch.int8

    def as_dict(self) -> dict[str, Any]:
        """For reports."""
        return {
            "node": self.node.name,
            "op": self.op,
            "kernel": self.kernel,
            "int8": self.int8,
            "code": self.reject.code,
            "reason": self.reject.reason,
            "hint": self.reject.hint,
        }


_NO_KERNEL = "ExecuTorch has no kernel for it either: a program with it runs only where you register one."


def _has_kernel(node: Node) -> bool:
    """Whether ExecuTorch has a kernel; what it decomposes is asked about in parts."""
    op = overload(node)
    if op is None or op.namespace != "aten" or torch.Tag.core in op.tags or op._can_decompose():
        return True
    return op._schema.name.removesuffix("_copy") in _with_kernel()


@functools.cache
def _with_kernel() -> frozenset[str]:
    """The operators that ExecuTorch's runtime has kernels for; a view's kernel is that of its copy."""
    from executorch.extension.pybindings.portable_lib import _get_operator_names

    return frozenset(name.partition(".")[0].removesuffix("_copy") for name in _get_operator_names())


class _Refused(Exception):
    def __init__(self, reject: Reject):
        self.reject = reject


def is_compute(node: Node) -> bool:
    """Whether a node does work of its own: not a quantize or dequantize step, nor bookkeeping."""
    if node.op != "call_function" or node.target in (operator.getitem, executorch_call_delegate):
        return False
    return not op_name(node).startswith("quantized_decomposed.")


def is_requantize(node: Node) -> bool:
    """Whether a node quantizes what another has just dequantized, here or in the Cortex-M dialect."""
    name = op_name(node)
    if not name.endswith(".quantize_per_tensor.default"):
        return False
    return op_name(node.all_input_nodes[0]).endswith(".dequantize_per_tensor.default")


def kind_of(cluster: Cluster) -> Hashable | None:
    """What a converter knows of an operator without constants, whatever its tensors are called; else None."""
    if len(cluster.parts) != 1:
        return None
    (part,) = cluster.parts
    numbers: dict[str, int] = {}

    def kind(value: Any) -> Hashable:
        if isinstance(value, Value):
            number = numbers.setdefault(value.name, len(numbers))
            return "tensor", number, value.shape, value.dtype, value.quant
        return tuple(map(kind, value)) if isinstance(value, list | tuple) else (type(value), value)

    call = part.call
    if any(value.is_const for value in call.tensors):
        return None
    args = tuple((name, kind(value)) for name, value in call.args.items())
    return call.op, args, kind(call.out), call.activation, bool(part.outputs)


def find_clusters(
    program: ExportedProgram,
    converter: str = OPEN,
    target: Target | None = None,
    is_partition: bool = False,
) -> tuple[list[Cluster], list[Rejected]]:
    """Every cluster of a program in execution order, and every other operator with its reason.

    In what was found to be a partition, tensors that come and go in float are states.
    """
    finder = _Finder(program, converter, target or TARGETS[DEFAULT_TARGET], is_partition)
    clusters: list[Cluster] = []
    rejected: list[Rejected] = []
    taken: set[Node] = set()
    finder.find_islands(program)
    for node in program.graph.nodes:
        of_state = finder.is_of_state(node)
        if not (is_compute(node) or is_requantize(node) or of_state) or node in taken:
            continue
        if finder.constants.find(node) is not None:
            continue  # computed at compile time, wherever it is used
        island = finder.islands.get(node)
        if island is not None and node is not island[-1]:
            continue  # decided about with its last operator
        try:
            cluster = finder.cluster(node, of_state) if island is None else finder.island(island)
        except _Refused as refused:
            if island is not None:
                rejected += [Rejected(n, op_name(n), refused.reject) for n in island if n is not node]
            rejected.append(Rejected(node, op_name(node) or str(node.target), refused.reject))
        else:
            clusters.append(cluster)
            taken.update(cluster.members)
    return clusters, [r for r in rejected if r.node not in taken]


class _Finder:
    def __init__(self, program: ExportedProgram, converter: str, target: Target, is_partition: bool):
        self.is_partition = is_partition
        self.constants = Constants(program)
        self.converter = converter
        self.target = target
        self.islands: dict[Node, list[Node]] = {}
        self.position: dict[Node, int] = {}
        self.with_state = False  # what may read and give float tensors is looked at
        self.in_state: set[Node] = set()  # states that are float in the NPU, new and old, moved or not

    def find_islands(self, program: ExportedProgram) -> None:
        """Group operators that hand float values to one another, where every one can stand in an island."""
        group: dict[Node, list[Node]] = {}
        for node in program.graph.nodes:
            if not self._is_real(node):
                continue
            own_group = group.setdefault(node, [node])
            for source in node.all_input_nodes:
                if source in group and group[source] is not own_group:
                    own_group = [*group[source], *own_group]
                    for member in own_group:
                        group[member] = own_group
        position = self.position = {node: index for index, node in enumerate(program.graph.nodes)}
        states = FloatStates(program, self._is_float_activation, self.is_partition)
        for members in {id(m): m for m in group.values()}.values():
            members.sort(key=position.__getitem__)
            is_held = self.converter == OPEN and states.hold(members)
            if not is_held and len(members) > 1 and not _is_with_activation(members):
                self.islands.update(dict.fromkeys(members, members))
        self.in_state = states.nodes

    def is_of_state(self, node: Node) -> bool:
        """Whether a node computes, moves or quantizes a state that is float in the NPU."""
        rounds = op_name(node) == QUANTIZE_TENSOR and node.all_input_nodes[0] in self.in_state
        return rounds or (node in self.in_state and node.op == "call_function")

    def _is_real(self, node: Node) -> bool:
        spec = find(op_name(node)) if is_compute(node) else None
        if spec is None or spec.real is None or self.constants.find(node) is not None:
            return False
        # What compares integers stays on the CPU, and what reads the mask it makes need not.
        return not any(self._is_integer_activation(source) for source in node.all_input_nodes)

    def _is_integer_activation(self, node: Node) -> bool:
        tensor = tensor_of(node)
        wide = tensor is not None and tensor.dtype in (torch.int16, torch.int32, torch.int64)
        return wide and self.constants.find(node) is None

    def island(self, nodes: list[Node]) -> Cluster:
        """The cluster of several operators; raises `_Refused` if they cannot be one."""
        inside = set(nodes)
        self.with_state = has_state = self._has_state(nodes)
        try:
            parts = tuple(self._part(node, inside) for node in nodes)
        finally:
            self.with_state = False
        if not has_state and not any(part.outputs for part in parts):
            raise _Refused(_not_quantized("its result is not quantized to int8"))
        if self.converter != OPEN:
            raise _Refused(
                Reject(
                    "ON203",
                    "Only the open converter computes several operators in float between int8 tensors",
                    "Quantize with NeutronQuantizer(NeutronTargetSpec(converter='eiq')), which rounds there.",
                )
            )
        if (problem := island_problem(parts)) is not None:
            raise _Refused(problem)
        readers = [u for p in parts for q in p.outputs for step in q.users for u in step.users]
        if any(self.position[u] < self.position[nodes[-1]] for u in readers if u not in inside):
            raise _Refused(
                Reject(
                    "ON203",
                    "Float values of a group must not be read before the group is complete",
                    "Quantize the result that is read first: give the model to NeutronQuantizer.",
                )
            )
        return Cluster(parts, True)

    def _has_state(self, nodes: list[Node]) -> bool:
        """Whether operators make a new state of an old one: both are float, and pass by all that rounds.

        The old one is an input of the program and the new one an output, moved at most; something in int8
        is worked into it.
        """
        read = [s for n in nodes for s in n.all_input_nodes if s not in nodes]
        if not any(op_name(s) == DEQUANTIZE_TENSOR for s in read):
            return False
        old = [s for s in read if self._is_float_activation(s) and _is_input(s)]
        new = [n for n in nodes if any(_is_output(u) for u in n.users if u not in nodes)]
        return bool(old and new)

    def _is_float_activation(self, node: Node) -> bool:
        tensor = tensor_of(node)
        if tensor is None or tensor.dtype != torch.float32 or self.constants.find(node) is not None:
            return False
        return op_name(node) not in DEQUANTIZE

    def cluster(self, node: Node, of_state: bool = False) -> Cluster:
        """The cluster around an operator; raises `_Refused` with the reason if there is none."""
        self.with_state = of_state
        try:
            part = self._part(node, {node} if of_state else ())
            return Cluster((part,), of_state and part.spec.real is not None)
        finally:
            self.with_state = False

    def _part(self, node: Node, inside: Collection[Node] = ()) -> Part:
        """An operator with what belongs to it; `inside` are those of its island, itself among them."""
        name = op_name(node)
        spec = REQUANTIZE if name == QUANTIZE_TENSOR else find(name)
        if spec is None:
            raise _Refused(
                Reject(
                    "ON201",
                    f"{name or node.target} is not in the operator table",
                    "openneutron ops lists what is." if _has_kernel(node) else _NO_KERNEL,
                )
            )
        self._check_constants(node, spec)
        if spec is REQUANTIZE:
            body: tuple[Node, ...] = ()
            activation = Activation.NONE
            outputs, out = self._quantized([node])
        else:
            body, activation = ((node,), Activation.NONE) if inside else self._body(node, spec)
            integers = spec.integer_result or self._is_row_of_integers(node)
            outputs, out = ((), _value(body[-1], None)) if integers else self._result(body[-1], inside)
        args: dict[str, Any] = {}
        inputs: list[Node] = []
        for key, value in bind_args(node).items():
            if isinstance(value, list | tuple) and any(isinstance(v, Node) for v in value):
                args[key] = tuple(v and self._operand(v, key, spec, inputs, inside) for v in value)
            elif isinstance(value, Node):
                args[key] = self._operand(value, key, spec, inputs, inside)
            else:
                args[key] = value
        for step in inputs:
            others = [u.name for u in step.users if u is not node and u not in inputs and u not in inside]
            if others:
                raise _Refused(
                    Reject(
                        "ON207",
                        f"its input step {step.name} is shared with {others[0]}",
                        "Lower with to_edge_transform_and_lower, which gives each reader its own.",
                    )
                )
        call = Call((body or (node,))[-1].name, name, args, out, activation, self.target)
        if not any(not v.is_const for v in call.tensors):
            raise _Refused(Reject("ON202", "it has no quantized input"))
        reject = spec.check(call, self.converter)
        if reject is not None:
            raise _Refused(reject)
        return Part(node, spec, call, tuple(dict.fromkeys(inputs)), body, outputs)

    def _is_row_of_integers(self, node: Node) -> bool:
        """Whether an operator takes rows of a constant that are places themselves."""
        if op_name(node) != "aten.index.Tensor":
            return False
        table = self.constants.find(bind_args(node)["self"])
        return table is not None and table[0].dtype in ("int32", "int64")

    def _check_constants(self, node: Node, spec: OpSpec) -> None:
        """Refuse weights that are computed, and numbers that are not finite."""
        args = bind_args(node)
        if isinstance(spec.quantize, Weighted) and self._is_computed(args.get(spec.quantize.weight)):
            raise _Refused(
                Reject("ON203", "Weights must be constant", "It is computed from the model's inputs.")
            )
        for key, value in args.items():
            if isinstance(value, float) and not math.isfinite(value) and key not in spec.may_be_infinite:
                raise _Refused(Reject("ON203", f"Numbers must be finite (got {key} = {value})"))

    def _is_computed(self, value: Any) -> bool:
        """Whether a value is no constant, nor one as integers."""
        return isinstance(value, Node) and self.constants.find(value) is None

    def _body(self, node: Node, spec: OpSpec) -> tuple[tuple[Node, ...], Activation]:
        """The operator, its getitem if it has several results, and an activation that fuses into it."""
        body = [node]
        if not isinstance(node.meta.get("val"), torch.Tensor):
            picks = [u for u in node.users if u.target is operator.getitem]
            if len(picks) != len(node.users) or [p.args[1] for p in picks] != [0]:
                raise _Refused(
                    Reject("ON203", "Only its first result may be used", "Drop the other results.")
                )
            body.append(picks[0])
        activation = Activation.NONE
        if spec.fuses_activation and (user := only_user(body[-1])) is not None:
            follower = _fused_activation(user)
            if follower is not None:
                activation = follower
                body.append(user)
        while (user := only_user(body[-1])) is not None and _is_plain_copy(user):
            body.append(user)
        return tuple(body), activation

    def _result(self, last: Node, inside: Collection[Node] = ()) -> tuple[tuple[Node, ...], Value]:
        users = [u for u in last.users if u not in inside]
        if inside and not users and last.users:
            return (), _value(last, None)
        quantizers = [u for u in users if op_name(u) == QUANTIZE_TENSOR]
        if self.with_state and users and (not quantizers or last in self.in_state):
            return (), _value(last, None)
        if (len(quantizers) != len(users) and not self.with_state) or not users:
            raise _Refused(_in_another_float(last) or _not_quantized("its result is not quantized to int8"))
        return self._quantized(quantizers)

    def _quantized(self, quantizers: list[Node]) -> tuple[tuple[Node, ...], Value]:
        quants = {per_tensor_quant(q) for q in quantizers}
        if len(quants) != 1 or None in quants:
            raise _Refused(_not_quantized("its result is quantized in two ways"))
        for q in quantizers:
            _check_int8(q, "its result")
        return tuple(quantizers), _value(quantizers[0], quants.pop())

    def _operand(
        self, node: Node, key: str, spec: OpSpec, inputs: list[Node], inside: Collection[Node] = ()
    ) -> Value:
        if node in inside:
            return _value(node, None)
        while _is_plain_copy(node):
            inputs.append(node)
            node = node.all_input_nodes[0]
        const = self.constants.find(node)
        if const is not None:
            constant, nodes = const
            float_constant = constant.quant is None and constant.dtype.startswith("float")
            if float_constant and key not in spec.unquantized and not inside:
                raise _Refused(_not_quantized(f"its constant '{key}' is not quantized to int8"))
            inputs += nodes
            return Value(
                node.name, tuple(constant.tensor.shape), constant.dtype, constant.quant, constant.array
            )
        if key in spec.integers or (spec.real is not None and _is_truth(node)):
            return _value(node, None)
        if op_name(node) != DEQUANTIZE_TENSOR:
            if op_name(node) in DEQUANTIZE:
                raise _Refused(_not_quantized(f"its input '{key}' is quantized per channel"))
            if self.with_state and self._is_float_activation(node):
                return _value(node, None)
            raise _Refused(_not_quantized(f"its input '{key}' is not quantized to int8"))
        quant = per_tensor_quant(node)
        if quant is None:
            raise _Refused(_not_quantized(f"its input '{key}' has parameters that are not constant"))
        _check_int8(node, f"its input '{key}'")
        inputs.append(node)
        return _value(bind_args(node)["input"], quant)


def _is_truth(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dtype == torch.bool


def _is_input(node: Node) -> bool:
    """Whether a value is an input of the program, or a part of one."""
    return moved_from(node).op == "placeholder"


def _is_output(node: Node) -> bool:
    """Whether what a node reads becomes an output, or a part of one, and nothing else."""
    return node.op == "output" or (moves(node) and all(map(_is_output, node.users)))


def _is_plain_copy(node: Node) -> bool:
    """A copy in float that changes no value: a reshape of channels-last data decomposes to one and a view."""
    if op_name(node) not in IDENTITY.names:
        return False
    source, copy = tensor_of(node.all_input_nodes[0]), tensor_of(node)
    return source is not None and copy is not None and source.dtype == copy.dtype


def _is_with_activation(nodes: Sequence[Node]) -> bool:
    """Whether nodes are an operator and the activation that fuses into it: one kernel in integers."""
    spec = find(op_name(nodes[0]))
    return (
        len(nodes) == 2
        and spec is not None
        and spec.fuses_activation
        and only_user(nodes[0]) is nodes[1]
        and _fused_activation(nodes[1]) is not None
    )


def _fused_activation(node: Node) -> Activation | None:
    """The activation a clamp-like node fuses to, if LiteRT has it."""
    spec = find(op_name(node))
    if spec is None or not any(
        n.startswith(("aten.relu", "aten.hardtanh", "aten.clamp")) for n in spec.names[:1]
    ):
        return None
    empty = Value("", (), "float32")
    return activation_of(*clamp_bounds(Call(node.name, op_name(node), bind_args(node), empty)))


def _value(node: Node, quant: Quant | None) -> Value:
    tensor = tensor_of(node)
    if tensor is None:
        raise _Refused(Reject("ON203", f"{node.name} is not one tensor"))
    if any(not isinstance(d, int) for d in tensor.shape):
        shape = [str(d) for d in tensor.shape]
        raise _Refused(
            Reject("ON205", f"Shapes must be static (got {shape})", "Export without dynamic_shapes.")
        )
    if 0 in tensor.shape:
        raise _Refused(
            Reject(
                "ON203",
                f"Tensors must not be empty (got {list(tensor.shape)})",
                "Give inputs that have elements, or leave out what computes on none.",
            )
        )
    return Value(node.name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), quant)


def _check_int8(node: Node, what: str) -> None:
    """A quantize or dequantize step must be of int8."""
    dtype = bind_args(node)["dtype"]
    if dtype != torch.int8:
        raise _Refused(
            _not_quantized(f"{what} is quantized to {str(dtype).removeprefix('torch.')}, not int8")
        )


def _not_quantized(problem: str) -> Reject:
    return Reject(
        "ON202",
        problem,
        "Quantize first: give compile_model calibration inputs, or use NeutronQuantizer and then "
        "to_edge_transform_and_lower, since to_edge alone decomposes operators into float parts.",
    )


def _in_another_float(node: Node) -> Reject | None:
    """Why quantization leaves an operator alone: it computes in a float that is not float32."""
    value = tensor_of(node)
    if value is None or not value.is_floating_point() or value.dtype == torch.float32:
        return None
    return Reject(
        "ON202",
        f"it computes in {str(value.dtype).removeprefix('torch.')}; only float32 is quantized",
        "Call .float() on the model and on its inputs, then quantize.",
    )


def island_problem(parts: Sequence[Part]) -> Reject | None:
    """Why operators cannot be computed as one island: where a function stands that no kernel computes."""
    made = {part.last.name: part for part in parts}
    read = {value.name for part in parts for value in part.call.tensors if value.name in made}
    for part in parts:
        real = part.spec.real_of(part.call)
        assert real is not None
        if not real.function:
            continue
        inside = [made[v.name] for v in part.call.tensors if v.name in made]
        last = part.last.name not in read and len(part.call.tensors) == 1 and real.monotone
        if inside and not last and not all(_of_one_byte(p, made) for p in inside):
            return Reject(
                "ON203",
                f"{part.call.op} of a float value must be the last of its group",
                "Quantize its operand: give the model to NeutronQuantizer.",
            )
    return None


def _of_one_byte(part: Part, made: Mapping[str, Part]) -> bool:
    """Whether a value of an island is a function of one int8 tensor, element by element."""
    sources: set[str] = set()

    def visit(current: Part) -> bool:
        assert current.spec.real is not None
        for value in current.call.tensors:
            if value.name in made:
                if not visit(made[value.name]):
                    return False
            elif not value.is_const:
                sources.add(value.name)
            elif math.prod(value.shape) != 1:
                return False
        return not current.spec.real.reduces

    return visit(part) and len(sources) == 1
