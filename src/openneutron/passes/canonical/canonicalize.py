"""One form for what PyTorch says in several: no in-place calls, no no-ops, no scalars."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from openneutron.fx import (
    bind_args,
    is_empty,
    is_float,
    op_name,
    overload,
    same_shape,
    same_strides,
    tensor_of,
)
from openneutron.passes.graph import add_constant, change_call, constant, insert
from openneutron.passes.patterns import only_user

aten = torch.ops.aten


def remove_batch_counters(model: GraphModule) -> bool:
    """Drop `num_batches_tracked += 1`: nothing reads it, and written buffers cannot be lowered."""
    counters = [
        node
        for node in model.graph.nodes
        if node.target == aten.add_.Tensor
        and str(getattr(node.args[0], "target", "")).endswith("batches_tracked")
    ]
    for node in counters:
        model.graph.erase_node(node)
    return bool(counters)


def _is_view(node: Node) -> bool:
    op = overload(node)
    returns = op._schema.returns if op is not None else []
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


_ALWAYS_IDENTITY = frozenset(
    f"aten.{name}"
    for name in ("alias.default", "detach.default", "lift_fresh_copy.default", "lift_fresh.default",
                 "clone.default", "contiguous.default", "_assert_tensor_metadata.default", "positive.default")
)  # fmt: skip
_IDENTITY_IF_SAME_TYPE = frozenset(
    f"aten.{name}"
    for name in (
        "to.dtype",
        "to.device",
        "to.dtype_layout",
        "to.other",
        "_to_copy.default",
        "type_as.default",
    )
)
# Of these, a result of the input's shape is the input.
_IDENTITY_IF_SAME_SHAPE = frozenset(
    f"aten.{name}"
    for name in ("expand.default", "expand_as.default", "slice.Tensor", "narrow.default", "repeat.default",
                 "tile.default")
)  # fmt: skip
# These keep the order of the elements: of a chain of them, only the shape at its end matters.
RESHAPES = frozenset(
    f"aten.{name}"
    for name in ("view.default", "view_as.default", "_unsafe_view.default", "reshape.default",
                 "reshape_as.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
                 "squeeze.default", "squeeze.dim", "squeeze.dims")
)  # fmt: skip
_DROPOUTS = frozenset(
    f"aten.{name}.default"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
# By these numbers.
_NEUTRAL = {
    "aten.add.Tensor": 0,
    "aten.add.Scalar": 0,
    "aten.sub.Tensor": 0,
    "aten.sub.Scalar": 0,
    "aten.mul.Tensor": 1,
    "aten.mul.Scalar": 1,
    "aten.div.Tensor": 1,
    "aten.div.Scalar": 1,
    "aten.pow.Tensor_Scalar": 1,
}

IDENTITIES = _ALWAYS_IDENTITY | _IDENTITY_IF_SAME_TYPE | _IDENTITY_IF_SAME_SHAPE | RESHAPES


def _given_back(node: Node) -> Node | None:
    """The input that a call gives back as it is; None if it computes or moves something."""
    name = op_name(node)
    if name == "aten.cat.default":
        parts = [part for part in cast(list[Node], node.args[0]) if not is_empty(part)]
        return parts[0] if len(parts) == 1 and _is_alike(parts[0], node) else None
    source = node.args[0] if name and node.args else None
    if not isinstance(source, Node):
        return None
    if name in _DROPOUTS:
        args = bind_args(node)
        return source if not args["train"] or args["p"] == 0 else None
    if name in RESHAPES:
        return _same_shape_before(node)
    before, after = tensor_of(source), tensor_of(node)
    if name in _ALWAYS_IDENTITY:
        # A clone to another memory format is the user's wish; it is kept, and the layout stage decides.
        return source if before is None or after is None or same_strides(before, after) else None
    if before is None or after is None or before.dtype != after.dtype or not same_shape(before, after):
        return None
    return source if _is_neutral(node, name, before, after) else None


def _is_alike(a: Node, b: Node) -> bool:
    before, after = tensor_of(a), tensor_of(b)
    return (
        before is not None and after is not None and before.dtype == after.dtype and same_shape(before, after)
    )


def _same_shape_before(node: Node) -> Node | None:
    """The value that a chain of reshapes began with or went through, if this one leads back to its shape."""
    after, source = tensor_of(node), node.args[0]
    while after is not None and isinstance(source, Node):
        before = tensor_of(source)
        if before is not None and before.dtype == after.dtype and same_shape(before, after):
            return source
        if op_name(source) not in RESHAPES:
            return None
        source = source.args[0]
    return None


def _is_neutral(node: Node, name: str, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether a call whose result has its input's shape and type gives back the input."""
    if name in _IDENTITY_IF_SAME_SHAPE:
        return True
    if name in ("aten.pad.default", "aten.constant_pad_nd.default"):
        return not any(bind_args(node)["pad"])
    if name in _NEUTRAL:
        args = bind_args(node)
        other = args["exponent"] if "exponent" in args else args["other"]
        return not isinstance(other, Node) and other == _NEUTRAL[name] and not args.get("rounding_mode")
    same_memory = same_strides(before, after)
    if name in _IDENTITY_IF_SAME_TYPE:
        return same_memory
    # Any other view (a permutation, say) shows the same if it goes through the same memory in the same way.
    return _is_view(node) and same_memory and before.storage_offset() == after.storage_offset()


def remove_no_ops(model: GraphModule) -> bool:
    """Drop calls that give back their input: detach, dropout in evaluation, casts to the same type, ..."""
    changed = False
    for node in list(model.graph.nodes):
        source = _given_back(node)
        if source is None:
            continue
        if not node.users:
            model.graph.erase_node(node)
        else:
            node.replace_all_uses_with(source)
        changed = True
    return changed


# ----------------------------------------------------------------------------------------------------
# Bounds

_CLAMPS = (aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.hardtanh.default)


def normalize_bounds(model: GraphModule) -> bool:
    """Write bounds as they work: infinite ones that bound nothing go, and where two cross, the upper wins."""
    changed = False
    for node in list(model.graph.nodes):
        if node.target not in _CLAMPS or not is_float(node):
            continue
        args = bind_args(node)
        low, high = (args.get(f"{side}_val", args.get(side)) for side in ("min", "max"))
        if isinstance(low, Node) or isinstance(high, Node):
            continue
        new_low = None if low == -math.inf else low
        new_high = None if high == math.inf else high
        if new_low is not None and new_high is not None and new_low > new_high:
            new_low = new_high
        if (new_low, new_high) == (low, high):
            continue
        if new_low is None and new_high is None:
            node.replace_all_uses_with(args["self"])
        else:
            change_call(node, aten.clamp.default, (args["self"], new_low, new_high))
        changed = True
    return changed


# ----------------------------------------------------------------------------------------------------
# Scalars: a number in an arithmetic call becomes a tensor, because only tensors are quantized

ARITHMETIC = {
    f"aten.{name}.{kind}": getattr(aten, name).Tensor
    for name in ("add", "sub", "mul", "div")
    for kind in ("Tensor", "Scalar")
}


_PROMOTING = frozenset(ARITHMETIC) | {"aten.maximum.default", "aten.minimum.default", "aten.cat.default"}


def convert_operands(model: GraphModule) -> bool:
    """Convert operands that a float operator would convert itself: integers, halves, double numbers."""
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) not in _PROMOTING or not is_float(node):
            continue
        for source in node.all_input_nodes:
            if tensor_of(source) is not None and not is_float(source):
                cast_ = insert(node, aten.to.dtype, (source, torch.float32), like=node)
                node.replace_input_with(source, cast_)
                changed = True
    return changed


def replace_scalars(model: GraphModule) -> bool:
    """Turn numbers in add, sub, mul, div and rsub into constants of one element, and drop their `alpha`."""
    changed = False
    for node in list(model.graph.nodes):
        if op_name(node) in ("aten.rsub.Scalar", "aten.rsub.Tensor") and is_float(node):
            args = bind_args(node)
            change_call(node, aten.sub.Tensor, (args["other"], args["self"]))
            _scale_operand(model, node, args["alpha"])
            changed = True
        if op_name(node) in ARITHMETIC and is_float(node):
            changed |= _replace_scalars_of(model, node)
    return changed


def _replace_scalars_of(model: GraphModule, node: Node) -> bool:
    args = bind_args(node)
    if all(isinstance(args[name], Node) for name in ("self", "other")) and args.get("alpha", 1) == 1:
        return False
    change_call(node, ARITHMETIC[op_name(node)], (args["self"], args["other"]))
    _scale_operand(model, node, args.get("alpha", 1))
    node.args = tuple(n if isinstance(n, Node) else _scalar(model, node, n) for n in node.args)
    return True


def _scalar(model: GraphModule, before: Node, value: Any) -> Node:
    """A number as a tensor of one dimension, or of none where the result has none."""
    result = tensor_of(before)
    number = torch.tensor(float(value))
    bare = result is not None and result.dim() == 0
    return add_constant(model, before, number if bare else number.reshape(1), "scalar")


def _scale_operand(model: GraphModule, node: Node, alpha: Any) -> None:
    """Multiply the second operand by alpha, ahead of the call."""
    if alpha == 1:
        return
    first, second = cast(tuple[Any, Any], node.args)
    if isinstance(second, Node):
        second = insert(node, aten.mul.Tensor, (second, _scalar(model, node, alpha)), like=node)
    else:
        second = second * alpha
    node.args = (first, second)


def replace_constant_division(model: GraphModule) -> bool:
    """Turn a division by a constant into a multiplication by its reciprocal."""
    changed = False
    for node in list(model.graph.nodes):
        divisor = constant(model, node.args[1]) if node.target == aten.div.Tensor else None
        if (
            divisor is not None
            and is_float(node)
            and not divisor.requires_grad
            and bool((divisor != 0).all())
        ):
            inverse = add_constant(model, node, divisor.reciprocal(), "reciprocal")
            change_call(node, aten.mul.Tensor, (node.args[0], inverse))
            changed = True
    return changed


def duplicate_shared_biases(model: GraphModule) -> bool:
    """Give every layer its own read of a bias: its scale follows from that layer's input."""
    changed = False
    for node in list(model.graph.nodes):
        bias = (
            node.args[2]
            if len(node.args) > 2 and op_name(node).startswith(("aten.conv", "aten.linear"))
            else None
        )
        if isinstance(bias, Node) and bias.op == "get_attr" and only_user(bias) is None:
            with model.graph.inserting_before(node):
                copy = model.graph.get_attr(str(bias.target))
            copy.meta.update(bias.meta)
            node.update_arg(2, copy)
            changed = True
    return changed
