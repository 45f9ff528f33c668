"""What is linear along a dimension with constants, as products with constant matrices.

Resampling and running sums: the matrix is what the operator makes of unit vectors. Where it only chooses,
as nearest neighbours do, its rows are indices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from openneutron.fx import bind_args, is_float, op_name, tensor_of
from openneutron.passes.graph import add_constant, constant, insert

aten = torch.ops.aten
_SIDE = 4  # of what is resampled in one dimension
_LARGEST = 1 << 18  # elements of a matrix; above, the CPU has less to do
_RESAMPLING = {
    f"aten.{name}.vec"
    for name in ("upsample_linear1d", "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa",
                 "_upsample_bicubic2d_aa", "upsample_nearest1d", "upsample_nearest3d",
                 "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
}  # fmt: skip
_SAMPLING = frozenset({"aten.grid_sampler.default", "aten.grid_sampler_2d.default"})
_SUMMING = frozenset({"aten.cumsum.default", "aten.index_add.default"})


def rewrite_linear_maps(model: GraphModule) -> bool:
    """Write resampling, running sums and sums at constant places as products with constant matrices."""
    made = dict.fromkeys(_RESAMPLING, _resampled) | dict.fromkeys(_SAMPLING, _sampled)
    made |= dict.fromkeys(_SUMMING, _summed)
    changed = False
    for node in list(model.graph.nodes):
        name = op_name(node)
        if name not in made or not is_float(node):
            continue
        source = tensor_of(node.all_input_nodes[0])
        if source is None or not all(isinstance(d, int) for d in source.shape) or 0 in source.shape:
            continue
        new = made[name](model, node)
        if new is not None:
            node.replace_all_uses_with(new)
            model.graph.erase_node(node)
            changed = True
    return changed


def _resampled(model: GraphModule, node: Node) -> Node | None:
    args = bind_args(node)
    source, sizes = cast(Node, args["input"]), list(cast(Tensor, tensor_of(args["input"])).shape)
    factors, wanted = args["scale_factors"], args["output_size"]
    if wanted is not None and not all(isinstance(w, int) for w in wanted):
        return None
    results = list(cast(Tensor, tensor_of(node)).shape)
    if any(a * b > _LARGEST for a, b in zip(sizes[2:], results[2:], strict=True)):
        return None
    function = cast(Callable[..., Tensor], node.target)
    made = []
    for axis, size in enumerate(sizes[2:]):
        # The other dimensions stay as they are, the same everywhere; some kernels err where one has size 1.
        bound = dict(args)
        if wanted is not None:
            bound["output_size"] = [w if a == axis else _SIDE for a, w in enumerate(wanted)]
        if factors is not None:
            bound["scale_factors"] = [f if a == axis else 1.0 for a, f in enumerate(factors)]
        shape = [size if a == axis else 1 for a in range(len(sizes) - 2)]
        units = torch.eye(size).reshape(size, 1, *shape)
        shape = [s if a == axis else _SIDE for a, s in enumerate(shape)]
        bound["input"] = units.expand(size, 1, *shape).contiguous()
        with torch.no_grad():
            resampled = function(**bound).movedim(axis + 2, -1)
        made.append(resampled.reshape(size, -1, resampled.shape[-1])[:, 0].T.contiguous())
    if not _agrees(function, args, sizes, made):
        return None
    for axis, matrix in enumerate(made):
        if matrix.shape[0] != matrix.shape[1] or not torch.equal(matrix, torch.eye(len(matrix))):
            source = _along(model, node, source, axis + 2, matrix)
    return source


def _sampled(model: GraphModule, node: Node) -> Node | None:
    """An image read at constant places, between pixels too: each result is a sum of some pixels."""
    args = bind_args(node)
    source, grid = cast(Node, args["input"]), constant(model, args["grid"])
    sizes, results = (list(cast(Tensor, tensor_of(n)).shape) for n in (source, node))
    pixels, places = math.prod(sizes[2:]), math.prod(results[2:])
    if grid is None or not torch.equal(grid, grid[:1].expand_as(grid)) or pixels * places > _LARGEST:
        return None
    units = torch.eye(pixels).reshape(pixels, 1, *sizes[2:])
    each = grid[:1].detach().expand(pixels, *grid.shape[1:])
    with torch.no_grad():
        sampled = cast(Callable[..., Tensor], node.target)(**{**args, "input": units, "grid": each})
    flat = insert(node, aten.reshape.default, (source, [*sizes[:2], pixels]), node)
    chosen = _along(model, node, flat, 2, sampled.reshape(pixels, places).T.contiguous())
    return insert(node, aten.reshape.default, (chosen, results), node)


def _agrees(function: Any, args: dict[str, Any], sizes: list[int], made: list[Tensor]) -> bool:
    """Whether the matrices give what the operator gives."""
    sample = torch.rand([1, 1, *sizes[2:]], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = function(**{**args, "input": sample})
    for axis, matrix in enumerate(made):
        sample = torch.tensordot(sample, matrix, ([axis + 2], [1])).movedim(-1, axis + 2)
    return sample.shape == wanted.shape and torch.allclose(sample, wanted, atol=1e-4)


def _summed(model: GraphModule, node: Node) -> Node | None:
    args = bind_args(node)
    source = cast(Node, args.get("source", args["self"]))
    sizes = cast(Tensor, tensor_of(source)).shape
    if not sizes:
        return None
    dim = args["dim"] % len(sizes)
    if op_name(node) == "aten.cumsum.default":
        if sizes[dim] ** 2 > _LARGEST:
            return None
        return _along(model, node, source, dim, torch.ones(sizes[dim], sizes[dim]).tril())
    index = constant(model, args["index"])
    count = cast(Tensor, tensor_of(node)).shape[dim]
    if index is None or count * sizes[dim] > _LARGEST:
        return None
    matrix = torch.zeros(count, sizes[dim])
    matrix[index.reshape(-1).to(torch.int64), torch.arange(sizes[dim])] = float(args["alpha"])
    return insert(node, aten.add.Tensor, (args["self"], _along(model, node, source, dim, matrix)), like=node)


def _along(model: GraphModule, node: Node, source: Node, dim: int, matrix: Tensor) -> Node:
    """The product of a matrix with all vectors along a dimension; a choice of elements stays one."""
    if bool(((matrix == 0) | (matrix == 1)).all()) and bool((matrix.sum(1) == 1).all()):
        places = add_constant(model, node, matrix.argmax(1), "places")
        return insert(node, aten.index_select.default, (source, dim, places), node)
    last = cast(Tensor, tensor_of(source)).dim() - 1
    weights = add_constant(model, node, matrix, "matrix")
    if dim != last:
        source = insert(node, aten.transpose.int, (source, dim, last), node)
    product = insert(node, aten.linear.default, (source, weights), node)
    return product if dim == last else insert(node, aten.transpose.int, (product, dim, last), node)
