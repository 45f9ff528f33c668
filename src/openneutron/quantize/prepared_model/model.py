"""A model with observers in place, as the accuracy methods see it: layers with weights, and constants.

Every method works on what `prepare_pt2e` gives, before or after calibration: there the batch norms are folded
and each observer stands where a quantize step will be. Observers change nothing, so that the model computes
in float; `simulated` swaps them for the rounding they stand for, which is what the converted model computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize

from openneutron import ops
from openneutron.fx import bind_args, op_name
from openneutron.ops.spec import Weighted
from openneutron.passes.patterns import is_fusible_activation
from openneutron.quantize.annotation.number_formats import bias_parameters, let_bias_fit

Sample = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer with constant weights: `end` carries its result, after an activation computed in it."""

    node: Node
    weight: Node
    bias: Node | None
    axis: int  # of the weight's output channels
    groups: int
    end: Node

    @property
    def name(self) -> str:
        """The name `openneutron compare` gives it."""
        return self.end.name

    @property
    def transposed(self) -> bool:
        """Whether it is a transposed convolution, whose weight has the input channels first."""
        return "transpose" in op_name(self.node)


def layers_of(prepared: GraphModule) -> list[Layer]:
    """The layers with weights that are to be quantized, in order; each weight must have one reader."""
    found = []
    for node in prepared.graph.nodes:
        spec = ops.find(op_name(node)) if node.op == "call_function" else None
        if spec is None or not isinstance(spec.quantize, Weighted):
            continue
        args = bind_args(node)
        weight, bias = behind(args[spec.quantize.weight]), behind(args.get(spec.quantize.bias))
        if not _is_constant(weight) or (isinstance(bias, Node) and not _is_constant(bias)):
            continue
        if observer_node(args[spec.quantize.weight]) is None or len(readers(weight)) != 1:
            continue
        axis = spec.quantize.channel_axis
        groups = args.get("groups", 1)
        if axis is None or (axis != 0 and groups != 1):
            continue
        following = readers(node)
        fused = len(following) == 1 and spec.fuses_activation and is_fusible_activation(following[0])
        # An activation is computed in the layer only where nothing is rounded between the two.
        fused = fused and following[0].args[0] is node
        found.append(Layer(node, weight, bias, axis, groups, following[0] if fused else node))
    return found


def behind(node: Any) -> Any:
    """The node an observer looks at."""
    while isinstance(node, Node) and node.op == "call_module":
        node = node.args[0]
    return node


def readers(node: Node) -> list[Node]:
    """The nodes that read a result, through observers or not."""
    found: list[Node] = []
    for user in node.users:
        found += readers(user) if user.op == "call_module" else [user]
    return list(dict.fromkeys(found))


def observer_node(node: Any) -> Node | None:
    """The observer a layer reads an argument through."""
    return node if isinstance(node, Node) and node.op == "call_module" else None


def observer_of(prepared: GraphModule, node: Any) -> Any:
    """The observer module a layer reads an argument through, or None."""
    found = observer_node(node)
    return None if found is None else prepared.get_submodule(str(found.target))


def value_of(prepared: GraphModule, node: Node) -> Tensor:
    """The values of a constant."""
    found: Any = prepared
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found.detach()


def set_value(prepared: GraphModule, node: Node, value: Tensor) -> None:
    """Give a constant other values; the old tensor may be the user's, and is left as it is."""
    *path, name = str(node.target).split(".")
    owner: Any = prepared
    for part in path:
        owner = getattr(owner, part)
    old = getattr(owner, name)
    value = value.detach().to(old.dtype).clone()
    if isinstance(old, torch.nn.Parameter):
        setattr(owner, name, torch.nn.Parameter(value, old.requires_grad))
    elif name in owner._buffers:
        owner._buffers[name] = value
    else:
        setattr(owner, name, value)


def ensure_bias(prepared: GraphModule, layer: Layer) -> Node:
    """The bias of a layer; one of zeros, quantized like any other, is added where there is none."""
    if layer.bias is not None:
        return layer.bias
    args = bind_args(layer.node)
    weight = value_of(prepared, layer.weight)
    channels = weight.shape[layer.axis] * (layer.groups if layer.transposed else 1)
    source, scale = observer_of(prepared, args["input"]), observer_of(prepared, args["weight"])
    if source is None or scale is None:
        raise LookupError(layer.name)
    name = free_name(prepared, f"{layer.node.name}_bias")
    prepared.register_buffer(name, torch.zeros(channels, dtype=weight.dtype))
    derived = _derived_like(source, scale)
    observer = free_name(prepared, f"{layer.node.name}_bias_observer")
    prepared.add_module(observer, derived)
    with prepared.graph.inserting_before(layer.node):
        constant = prepared.graph.get_attr(name)
        constant.meta["val"] = prepared.get_buffer(name)
        watched = prepared.graph.call_module(observer, (constant,))
        watched.meta["val"] = constant.meta["val"]
    args["bias"] = watched
    layer.node.args, layer.node.kwargs = tuple(args.values()), {}
    prepared.recompile()
    object.__setattr__(layer, "bias", constant)
    return constant


def _derived_like(source: Any, weight: Any) -> DerivedObserverOrFakeQuantize:
    info = torch.iinfo(torch.int32)
    per_channel = weight.qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
    return DerivedObserverOrFakeQuantize(
        dtype=torch.int32,
        obs_or_fqs=[source, weight],
        derive_qparams_fn=bias_parameters,
        quant_min=info.min,
        quant_max=info.max,
        qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
        ch_axis=0 if per_channel else None,
    )


def free_name(prepared: GraphModule, wanted: str) -> str:
    """A name that nothing of the model has."""
    name, count = wanted, 0
    while hasattr(prepared, name):
        count += 1
        name = f"{wanted}_{count}"
    return name


def _is_constant(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr"


# --------------------------------------------------------------------------------------------------
# Running it: in float, or rounded


class Rounding(torch.nn.Module):
    """What a quantize step and a dequantize step do to a tensor, with the parameters of an observer."""

    def __init__(self, observer: Any):
        super().__init__()
        scale, zero = observer.calculate_qparams()
        self.low, self.high = observer.quant_min, observer.quant_max
        self.axis = getattr(observer, "ch_axis", None) if scale.numel() > 1 else None
        self.scale, self.zero = scale.to(torch.float32), zero.to(torch.float32)
        self._one: tuple[float, float, int, int] | None = None
        if self.axis is None and self.high < 1 << 15:
            step, zero = float(self.scale), int(self.zero)
            self._one = 1 / step, step, self.low - zero, self.high - zero

    def forward(self, x: Tensor) -> Tensor:
        """Round and clip."""
        if self._one is not None:  # one new tensor: PyTorch's own takes ten times longer
            inverse, step, low, high = self._one
            return (x * inverse).round_().clamp_(low, high).mul_(step)
        shape = [1] * x.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        scale, zero = self.scale.reshape(shape), self.zero.reshape(shape)
        return (((x / scale).round() + zero).clamp(self.low, self.high) - zero) * scale


class Rounded(torch.nn.Module):
    """A constant as its rounding leaves it, whatever is given."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        """The constant."""
        return self.value


def observers(prepared: GraphModule) -> dict[str, Any]:
    """The observers by the name their nodes call them by; several names may stand for one observer."""
    names = {str(n.target) for n in prepared.graph.nodes if n.op == "call_module"}
    return {name: prepared.get_submodule(name) for name in sorted(names)}


@contextmanager
def replaced(prepared: GraphModule, by: dict[str, torch.nn.Module]) -> Iterator[None]:
    """The model with other modules in place of some observers."""
    old = {name: prepared._modules[name] for name in by}
    try:
        prepared._modules.update(by)
        yield
    finally:
        prepared._modules.update(old)


def in_float(prepared: GraphModule) -> Any:
    """The model as it computes in float, with nothing observed."""
    return replaced(prepared, {name: torch.nn.Identity() for name in observers(prepared)})


def let_biases_fit(prepared: GraphModule) -> None:
    """Let the scales of weights leave room for the biases as they are now: methods change them."""
    for node in prepared.graph.nodes:
        if node.op == "call_module" and _is_constant(node.args[0]):
            observer = prepared.get_submodule(str(node.target))
            if isinstance(observer, DerivedObserverOrFakeQuantize):
                let_bias_fit(observer, value_of(prepared, node.args[0]))


def roundings(prepared: GraphModule) -> dict[str, torch.nn.Module]:
    """What each observer stands for, with the parameters it has now."""
    let_biases_fit(prepared)
    made: dict[int, Rounding] = {}
    found: dict[str, torch.nn.Module] = {}
    for name, observer in observers(prepared).items():
        if id(observer) not in made:
            made[id(observer)] = Rounding(observer)
        found[name] = made[id(observer)]
    return found


def simulated(prepared: GraphModule, exact: Collection[str] = ()) -> Any:
    """The model as it computes quantized; observers named in `exact` round nothing."""
    found = roundings(prepared)
    for node in prepared.graph.nodes:
        if node.op == "call_module" and _is_constant(node.args[0]):
            name = str(node.target)
            found[name] = Rounded(found[name](value_of(prepared, node.args[0])))
    return replaced(prepared, {**found, **{name: torch.nn.Identity() for name in exact}})
