"""Estimated cycles of operators that stay on the CPU, from their names and shapes.

Operators that `runtime/cpu_kernels` has a kernel for are estimated as those, which firmware links, the rest
as ExecuTorch's portable and Cortex-M kernels. A rough model: its parameters (`targets.cost.CostModel`,
those that begin with `cpu_`) are instructions counted on an emulated Cortex-M33, times an assumed number of
cycles each (benchmarks/bench_cpu_cost.py). It tells float kernels from the int8 kernels of the Cortex-M
dialect, multiplications from walks over elements, and these from functions of the C library. Within a class,
operators differ by two or three times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor
from torch.fx import Node

from openneutron.fx import bind_args, op_name, tensor_of
from openneutron.ops import TABLE
from openneutron.targets.chip import Target

Shape = Sequence[int]

_CONVOLUTIONS = frozenset({"convolution", "conv1d", "conv2d", "quantized_conv2d"})
_DEPTHWISE = frozenset({"quantized_depthwise_conv2d"})
_TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "quantized_transpose_conv2d"})
_PRODUCTS = frozenset({"mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "quantized_linear",
                       "quantized_batch_matmul"})  # fmt: skip
# CMSIS-NN's kernels whose products are over few values, or gathered.
_SHORT = _DEPTHWISE | _TRANSPOSED | {"quantized_batch_matmul"}
# ExecuTorch turns them into a second name for the same memory.
_VIEWS = frozenset({"view_copy", "view", "et_view", "alias", "getitem"})
# Beside the operator table's, those that only ExecuTorch's portable kernels know.
_MOVES = frozenset(name.split(".")[1] for spec in TABLE for name in spec.names if spec.moves_values) | {
    "arange", "as_strided_copy", "copy", "embedding", "full", "full_like", "index",
    "index_select", "roll", "slice_scatter", "split_copy", "split_with_sizes_copy", "stack", "unbind_copy",
}  # fmt: skip
_FUNCTIONS = frozenset({
    "exp", "expm1", "log", "log1p", "log2", "log10", "tanh", "sigmoid", "sin", "cos", "tan", "atan", "atan2",
    "asin", "acos", "sinh", "cosh", "sqrt", "rsqrt", "pow", "erf", "gelu", "elu", "_softmax", "_log_softmax",
    "softmax", "native_layer_norm", "native_group_norm",
})  # fmt: skip
# Portable kernels that take two tensors, or a tensor and a number, of any shapes and types; and those that
# compute where every element lies.
_BINARY = frozenset({
    "add", "sub", "rsub", "mul", "div", "minimum", "maximum", "where", "fmod", "remainder", "floor_divide",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "clamp",
    "flip", "gather", "upsample_nearest2d", "upsample_bilinear2d",
})  # fmt: skip
# What the kernels of runtime/cpu_kernels are counted by; those that compute take float32 alone.
_FAST = {
    "quantize_per_tensor": "quantize", "quantize_per_channel": "quantize",
    "dequantize_per_tensor": "dequantize", "dequantize_per_channel": "dequantize",
    **dict.fromkeys(("permute_copy", "transpose_copy", "expand_copy", "_to_dim_order_copy",
                     "_clone_dim_order", "slice_copy", "select_copy", "cat", "flip"), "move"),
}  # fmt: skip
_FAST_FLOAT = {
    **dict.fromkeys(("add", "sub", "mul", "div", "minimum", "maximum", "relu", "abs", "neg", "sqrt", "rsqrt",
                     "reciprocal", "clamp", "hardtanh", "eq", "ne", "lt", "le", "gt", "ge", "where", "sum",
                     "mean", "native_layer_norm", "avg_pool2d", "max_pool2d_with_indices",
                     "upsample_nearest2d", "upsample_bilinear2d"), "element"),
    **dict.fromkeys(("exp", "tanh", "sigmoid", "gelu", "_softmax", "_log_softmax"), "function"),
    **dict.fromkeys(("mm", "bmm", "addmm", "convolution"), "mac"),
}  # fmt: skip
# How many functions one of these is worth: with our kernel, and with the portable one in double precision.
_WORTH = {"gelu": (5.3, 23.0)}
_FAST_INT8 = {
    "quantize_per_tensor": "quantize", "dequantize_per_tensor": "dequantize", "quantized_add": "element",
    "quantized_mul": "element", "softmax": "function",
}  # fmt: skip


@dataclass(frozen=True)
class Operator:
    """A call of an operator: its name, the shapes it reads and writes, and the taps of a pooling window."""

    name: str  # as in `aten.add.Tensor`, or `aten::add.out` as a .pte spells it
    inputs: tuple[Shape, ...]
    output: Shape
    bytes_moved: int = 0  # read and written once each
    window: int = 1
    is_float: bool = True  # see are_floats

    @property
    def namespace(self) -> str:
        """The part before the name: aten, quantized_decomposed, cortex_m, ..."""
        return self.name.replace("::", ".").split(".")[0]

    @property
    def base(self) -> str:
        """The name without namespace, overload and memory layout."""
        parts = self.name.replace("::", ".").split(".")
        return (parts[1] if len(parts) > 1 else parts[0]).removesuffix("_nhwc")

    @property
    def kind(self) -> str:
        """quantize, dequantize or cpu."""
        for kind in ("quantize", "dequantize"):
            if self.base.startswith(f"{kind}_per"):
                return kind
        return "cpu"

    @property
    def fast(self) -> str:
        """What a kernel of runtime/cpu_kernels is counted by; empty if there is none."""
        if self.namespace == "cortex_m":
            return _FAST_INT8.get(self.base, "")
        if "_mode" in self.name:
            return ""
        base = "convolution" if self.base in _TRANSPOSED else self.base
        return _FAST.get(base) or (_FAST_FLOAT.get(base, "") if self.is_float else "")

    @property
    def is_view(self) -> bool:
        """Whether ExecuTorch runs nothing for it: a second name for the same memory."""
        return self.base in _VIEWS

    @property
    def macs(self) -> int:
        """Multiply-accumulates; 0 for what has none."""
        first, second = (*self.inputs, (), ())[:2]
        if self.base in ("addmm", "baddbmm"):
            first = second
        if self.base in _CONVOLUTIONS and len(second) > 1:
            return prod(self.output) * prod(second[1:])
        if self.base in _DEPTHWISE:
            return prod(self.output) * prod(second[1:-1])
        if self.base in _TRANSPOSED:
            return prod(first) * prod(second[1:])
        if self.base in _PRODUCTS and first:
            return prod(self.output) * first[-1]
        return 0


def operator_of(node: Node) -> Operator:
    """The call a node of an Edge program makes."""
    tensor = tensor_of(node)
    value = node.meta.get("val")
    if tensor is None and isinstance(value, tuple | list):
        tensor = next((v for v in value if isinstance(v, Tensor)), None)
    read = [t for n in node.all_input_nodes if (t := tensor_of(n)) is not None]
    inputs = tuple(sizes_of(t) for t in read)
    name = op_name(node) or str(node.target)
    if tensor is None:
        return Operator(name, inputs, ())
    args = bind_args(node) if op_name(node) else {}
    kernel = args.get("kernel_size") or ()
    window = prod(kernel) if isinstance(kernel, list | tuple) else int(kernel)
    if args.get("transposed"):  # one operator for both directions; the names tell them apart here
        name = "aten.conv_transpose2d.input"
    moved = sum(prod(sizes_of(t)) * t.element_size() for t in (*read, tensor))
    is_float = are_floats(str(t.dtype).removeprefix("torch.") for t in (*read, tensor))
    return Operator(name, inputs, sizes_of(tensor), moved, window, is_float)


def are_floats(types: Iterable[str]) -> bool:
    """Whether an operator that reads and writes these computes with float32 alone; conditions are bools."""
    dtypes = set(types)
    return "float32" in dtypes and dtypes <= {"float32", "bool"}


def sizes_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's sizes; one that only the run tells is counted as 1."""
    return tuple(d if isinstance(d, int) else int(d.node.hint or 1) for d in tensor.shape)


def cpu_work(op: Operator, *, portable: bool = False) -> tuple[str, float]:
    """The parameter of the cost model that an operator's work is counted by, and how much work it is.

    `portable`: with ExecuTorch's own kernels alone.
    """
    int8 = op.namespace == "cortex_m"
    if op.fast and not portable:
        elements = max([prod(op.output) * op.window, *(prod(s) for s in op.inputs)])
        functions = prod(op.output) * _WORTH.get(op.base, (1, 1))[0]
        work = {"mac": op.macs, "element": elements, "function": functions}.get(op.fast, prod(op.output))
        return f"cpu_fast_{op.fast}_cycles", work
    if op.kind in ("quantize", "dequantize"):
        prefix = "portable_" if op.kind == "quantize" and not int8 else ""
        return f"cpu_{prefix}{op.kind}_cycles", prod(op.output)
    if op.macs and int8:
        return f"cpu_int8_{'short_' if op.base in _SHORT else ''}mac_cycles", op.macs
    if op.macs:
        return "cpu_float_mac_cycles", op.macs
    if op.base in _MOVES:
        return "cpu_move_cycles", prod(op.output)
    if op.base in _FUNCTIONS:
        return "cpu_function_cycles", prod(op.output) * _WORTH.get(op.base, (1, 1))[1]
    if op.base in _BINARY and not int8:
        return "cpu_broadcast_cycles", prod(op.output)
    elements = max([prod(op.output) * op.window, *(prod(s) for s in op.inputs)])
    return ("cpu_int8_element_cycles" if int8 else "cpu_float_element_cycles"), elements


def cpu_cycles(op: Operator, target: Target, *, portable: bool = False) -> int:
    """Estimated cycles, in the NPU's clock; `portable`: with ExecuTorch's own kernels alone."""
    if op.is_view:
        return 0
    model, (parameter, amount) = target.cost, cpu_work(op, portable=portable)
    work: float = getattr(model, parameter) * amount
    return round((model.cpu_dispatch_cycles + work) * target.frequency_hz / model.cpu_frequency_hz)


def transpose_cycles(nbytes: int, target: Target) -> int:
    """Estimated cycles of the delegate transposing a tensor at a partition's border."""
    model = target.cost
    return round(model.cpu_transpose_cycles * nbytes * target.frequency_hz / model.cpu_frequency_hz)
