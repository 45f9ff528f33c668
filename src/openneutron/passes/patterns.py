"""What belongs together: patterns that both the passes and the quantizer look for."""

from __future__ import annotations

import torch
from torch.fx import Node

from openneutron.fx import bind_args, op_name
from openneutron.ops.common import activation_of

aten = torch.ops.aten

# The convolutions torchao's QAT fusion knows; it matches no other forms.
FUSED_BY_TORCHAO = (
    aten.conv1d.default,
    aten.conv2d.default,
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
)


def only_user(node: Node) -> Node | None:
    """The one node that uses another, if there is just one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def reads_alone(node: Node, source: Node) -> bool:
    """Whether nobody but this node reads a result."""
    return only_user(source) is node


def fusible_activation_after(node: Node) -> Node | None:
    """The activation that can be computed inside a node: its only user, and one that LiteRT can fuse."""
    user = only_user(node)
    return user if user is not None and is_fusible_activation(user) else None


def is_fusible_activation(node: Node) -> bool:
    """Whether LiteRT has a fused form for this activation."""
    args = bind_args(node) if op_name(node) else {}
    bounds: tuple[float | None, float | None]
    match op_name(node):
        case "aten.relu.default" | "aten.relu_.default":
            bounds = (0, None)
        case "aten.relu6.default" | "aten.relu6_.default":
            bounds = (0, 6)
        case "aten.hardtanh.default" | "aten.hardtanh_.default":
            bounds = (args["min_val"], args["max_val"])
        case "aten.clamp.default" | "aten.clamp_.default":
            bounds = (args["min"], args["max"])
        case "aten.clamp_min.default" | "aten.clamp_min_.default":
            bounds = (args["min"], None)
        case _:
            return False
    return activation_of(*bounds) is not None


def batch_norm_after(node: Node) -> Node | None:
    """The batch norm that QAT folds into a convolution: its only user, reading it as input."""
    user = only_user(node)
    if node.target in FUSED_BY_TORCHAO and user is not None and user.target == aten.batch_norm.default:
        return user if user.args[0] is node else None
    return None
