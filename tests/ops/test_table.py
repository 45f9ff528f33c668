"""The table as a whole: complete, consistent, and readable without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openneutron.ops import TABLE, find
from openneutron.ops.spec import FixedOutput, OpSpec, Shared

# Edge operators NXP publishes for i.MX RT700 (facts of the incumbent's own table).
EDGE = [
    "abs.default",
    "amax.default",
    "amin.default",
    "exp.default",
    "hardswish.default",
    "leaky_relu.default",
    "log.default",
    "maximum.default",
    "minimum.default",
    "mul.Tensor",
    "neg.default",
    "prelu.default",
    "relu.default",
    "rsqrt.default",
    "sigmoid.default",
    "tanh.default",
    "sum.dim_IntList",
    "slice_copy.Tensor",
    "view_copy.default",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "squeeze_copy.default",
    "unsqueeze_copy.default",
    "_adaptive_avg_pool2d.default",
    "avg_pool1d.default",
    "avg_pool2d.default",
    "max_pool1d.default",
    "max_pool2d.default",
    "max_pool2d_with_indices.default",
    "add.Tensor",
    "sub.Tensor",
    "addmm.default",
    "mm.default",
    "bmm.default",
    "cat.default",
    "clamp.default",
    "hardtanh.default",
    "clone.default",
    "constant_pad_nd.default",
    "pad.default",
    "convolution.default",
    "div.Tensor",
    "mean.dim",
    "permute_copy.default",
    "_softmax.default",
    "upsample_nearest2d.vec",
    "upsample_bilinear2d.vec",
    "linear.default",
]
# What users' models have beyond it.
BEYOND = [
    "gelu.default",
    "silu.default",
    "hardsigmoid.default",
    "elu.default",
    "pow.Tensor_Scalar",
    "sqrt.default",
    "select_copy.int",
    "pixel_shuffle.default",
    "batch_norm.default",
    "_native_batch_norm_legit_no_training.default",
    "conv_transpose2d.input",
    "reflection_pad2d.default",
    "expand_copy.default",
    "mish.default",
    "softplus.default",
]


def test_every_published_operator_is_there() -> None:
    assert [name for name in (*EDGE, *BEYOND) if find(f"aten.{name}") is None] == []
    assert find("dim_order_ops._clone_dim_order.default") is not None
    assert find("dim_order_ops._to_dim_order_copy.default") is not None


def test_in_place_variants_are_the_same_entry() -> None:
    for name in ("relu", "hardtanh", "leaky_relu", "hardswish", "tanh", "sigmoid", "clamp", "elu", "silu"):
        assert find(f"aten.{name}_.default") is find(f"aten.{name}.default")


def test_fixed_parameters_are_those_of_litert() -> None:
    fixed = {spec.name: spec.quantize for spec in TABLE if isinstance(spec.quantize, FixedOutput)}
    assert fixed == {
        "aten.sigmoid.default": FixedOutput(1 / 256, -128),
        "aten.tanh.default": FixedOutput(1 / 128, 0),
        "aten._softmax.default": FixedOutput(1 / 256, -128),
    }


def test_an_operator_that_only_moves_data_keeps_its_parameters() -> None:
    for name in ("max_pool2d", "cat", "constant_pad_nd", "maximum", "amax"):
        spec = find(f"aten.{name}.default")
        assert spec is not None
        assert isinstance(spec.quantize, Shared)


SHARED = [spec for spec in TABLE if isinstance(spec.quantize, Shared)]


@pytest.mark.parametrize("spec", SHARED, ids=lambda spec: spec.name)
def test_what_is_said_to_round_nothing_makes_no_new_values(spec: OpSpec) -> None:
    """Even numbers in: only an operator that computes makes others of them. The cases pad with 0 and 0.5."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made: set[float] = set()
    for case in spec.cases:
        function = case.make(torch)
        if isinstance(function, torch.nn.Module):
            function.eval()
        inputs = [2.0 * torch.randint(-9, 10, shape, generator=generator) for shape in case.shapes]
        result = function(*inputs)
        results = result if isinstance(result, tuple | list) else [result]
        given = {0.0, 0.5}.union(*(x.unique().tolist() for x in inputs))
        made |= {v for r in results if r.is_floating_point() for v in r.unique().tolist()} - given
    assert spec.keeps_values == (not made), f"{spec.name} makes {sorted(made)[:5]}"


def test_constraints_are_sentences() -> None:
    for spec in TABLE:
        for constraint in spec.requires:
            assert constraint.sentence[0].isupper() or constraint.sentence.split()[0] in _ARGUMENTS, (
                constraint.sentence
            )
            assert not constraint.sentence.endswith(".")


_ARGUMENTS = {"alpha", "ceil_mode", "count_include_pad", "divisor_override", "kH"}


def test_the_table_needs_no_torch() -> None:
    code = "import sys, openneutron.ops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
