"""Graph passes, in two ordered tuples: ATen passes before quantization, Edge passes before partitioning."""

from __future__ import annotations

from openneutron.passes.base import PTQ, QAT, Pass, check_order, run_passes
from openneutron.passes.canonical.canonicalize import (
    convert_operands,
    duplicate_shared_biases,
    normalize_bounds,
    remove_batch_counters,
    remove_no_ops,
    replace_constant_division,
    replace_scalars,
)
from openneutron.passes.canonical.constants import fold_constants, fold_float, fold_parameters
from openneutron.passes.canonical.places import rewrite_constant_places
from openneutron.passes.canonical.positions import index_writes, tabulate_positions
from openneutron.passes.canonical.regions import inline_regions
from openneutron.passes.canonical.writes import replace_in_place
from openneutron.passes.decompositions.attention import bound_masks
from openneutron.passes.decompositions.decompose import decompose_unsupported
from openneutron.passes.decompositions.matrices import rewrite_linear_maps
from openneutron.passes.decompositions.volume import rewrite_volume_convolutions
from openneutron.passes.fusion.affine import fold_affine, join_affine
from openneutron.passes.fusion.batch_norm import (
    add_bias_before_norm,
    normalize_epsilon,
    rewrite_linear_before_norm,
    rewrite_padding_before_norm,
    separate_normed_convolutions,
)
from openneutron.passes.fusion.branches import factor_out, merge_branches, remove_neutral_constants
from openneutron.passes.fusion.joins import compute_in_parts, take_from_parts
from openneutron.passes.fusion.layers import (
    add_batch_dimension,
    fuse_linear_add,
    move_activation_before_cat,
    rewrite_constant_matmul,
    separate_other_biases,
)

__all__ = ["ATEN_PASSES", "BEFORE_PREPARE", "FLOAT_PARTS", "PTQ", "QAT", "Pass", "run_passes"]

_REMOVE_NO_OPS = Pass("RemoveNoOps", "every call computes or moves something", remove_no_ops)
_REWRITE_CONSTANT_MATMUL = Pass(
    "RewriteConstantMatmul", "a product with a constant matrix is a linear layer", rewrite_constant_matmul
)

_REWRITE_CONSTANT_PLACES = Pass(
    "RewriteConstantPlaces",
    "what is chosen or replaced at constant places is slices, indices or a constant mask",
    rewrite_constant_places,
    requires=("FoldConstants", "ReplaceInPlace"),
)

_REWRITE_LINEAR_MAPS = Pass(
    "RewriteLinearMaps",
    "resampling and running sums are products with constant matrices",
    rewrite_linear_maps,
    requires=("FoldConstants", "ReplaceInPlace"),
)

_INLINE_REGIONS = Pass("InlineRegions", "a model is one graph, whatever contexts it enters", inline_regions)
_FOLD_CONSTANTS = Pass(
    "FoldConstants", "what no input and no training can change is a constant", fold_constants
)
_FOLD_PARAMETERS = Pass(
    "FoldParameters",
    "what no input can change is a constant",
    fold_parameters,
    requires=("FoldConstants",),
    modes=(PTQ,),
)

_DECOMPOSE_UNSUPPORTED = Pass(
    "DecomposeUnsupported",
    "an operator outside the table is there only if it cannot be expressed in it",
    decompose_unsupported,
    requires=("ReplaceInPlace", "RewriteConstantMatmul"),
)

_TAKE_FROM_PARTS = Pass(
    "TakeFromParts", "no slice of a concatenation lies in one part of it", take_from_parts
)
_MERGE_BRANCHES = Pass(
    "MergeBranches",
    "parallel layers that are added up are one layer",
    merge_branches,
    requires=("FuseLinearAdd",),
    modes=(PTQ,),
)
_FOLD_AFFINE = Pass(
    "FoldAffine",
    "an affine step stands beside no layer that could compute it",
    fold_affine,
    requires=("ReplaceConstantDivision", "FuseLinearAdd"),
    modes=(PTQ,),
)

# Run on what a model that others quantized leaves in float, before the whole of it is written as LiteRT.
FLOAT_PARTS: tuple[Pass, ...] = (
    _DECOMPOSE_UNSUPPORTED,
    Pass("FoldFloat", "what no input can change is a constant, unless it is made from integers", fold_float),
)

# Run on the exported module before torchao's prepare functions, which fold batch norms before they ask the
# quantizer for anything.
BEFORE_PREPARE: tuple[Pass, ...] = (
    _INLINE_REGIONS,
    # A batch norm is folded only into weights that are constants, not into what is computed from some.
    _FOLD_CONSTANTS,
    _FOLD_PARAMETERS,
    Pass(
        "SeparateNormedConvolutions",
        "only a batch norm reads the layer it follows",
        separate_normed_convolutions,
        modes=(PTQ,),
    ),
)

# Run by NeutronQuantizer before it annotates, so that everybody who uses the quantizer gets them.
ATEN_PASSES: tuple[Pass, ...] = (
    _INLINE_REGIONS,
    Pass("RemoveBatchCounters", "no buffer is written except running statistics", remove_batch_counters),
    _FOLD_CONSTANTS,  # first with what is written in place, which nothing else can express
    _FOLD_PARAMETERS,
    Pass(
        "ReplaceInPlace",
        "no call changes its arguments",
        replace_in_place,
        requires=("RemoveBatchCounters", "FoldConstants"),
    ),
    _REMOVE_NO_OPS,
    _REWRITE_CONSTANT_PLACES,
    _REWRITE_LINEAR_MAPS,
    Pass("ConvertOperands", "operands of float arithmetic are float", convert_operands),
    Pass("NormalizeBounds", "a bound bounds something, and two do not cross", normalize_bounds),
    Pass(
        "AddBatchDimension",
        "a convolution has a batch dimension",
        add_batch_dimension,
        requires=("ReplaceInPlace",),
    ),
    Pass(
        "SeparateOtherBiases",
        "the bias of a layer is one constant per channel",
        separate_other_biases,
        requires=("AddBatchDimension",),
    ),
    _REWRITE_CONSTANT_MATMUL,
    Pass(
        "RewriteVolumeConvolutions",
        "no convolution goes over three dimensions",
        rewrite_volume_convolutions,
    ),
    _DECOMPOSE_UNSUPPORTED,
    _REMOVE_NO_OPS,  # decompositions leave some,
    _REWRITE_CONSTANT_MATMUL,  # and contain products
    _FOLD_CONSTANTS,
    _FOLD_PARAMETERS,
    _REWRITE_CONSTANT_PLACES,
    Pass(
        "IndexWrites",
        "rows are written at places that are known when it runs in one way",
        index_writes,
        requires=("ReplaceInPlace", "FoldConstants"),
    ),
    Pass(
        "TabulatePositions",
        "what depends on a bounded index alone is a row of a table",
        tabulate_positions,
        requires=("IndexWrites", "DecomposeUnsupported"),
    ),
    _TAKE_FROM_PARTS,
    Pass(
        "BoundMasks",
        "what forbids places of a softmax is finite",
        bound_masks,
        requires=("FoldConstants", "DecomposeUnsupported"),
    ),
    Pass(
        "ReplaceScalars",
        "operands of arithmetic are tensors, alpha is 1",
        replace_scalars,
        requires=("FoldConstants",),
    ),
    Pass(
        "ReplaceConstantDivision",
        "nothing is divided by a constant",
        replace_constant_division,
        requires=("ReplaceScalars",),
    ),
    Pass(
        "ComputeInParts",
        "numbers of different size are not applied to a concatenation",
        compute_in_parts,
        requires=("ReplaceConstantDivision",),
    ),
    Pass(
        "FuseLinearAdd",
        "a constant added to a linear layer is its bias",
        fuse_linear_add,
        requires=("ReplaceScalars",),
    ),
    Pass(
        "RemoveNeutralConstants",
        "nothing adds zeros or multiplies by ones",
        remove_neutral_constants,
        requires=("ReplaceConstantDivision",),
    ),
    _FOLD_AFFINE,
    _MERGE_BRANCHES,
    _FOLD_AFFINE,  # a merged layer may stand beside another
    _MERGE_BRANCHES,
    Pass("FactorOut", "x + x * g is one product", factor_out, requires=("ReplaceScalars",)),
    Pass(
        "JoinAffine",
        "two affine steps with numbers per channel are one batch norm",
        join_affine,
        requires=("FoldAffine",),
        modes=(PTQ,),
    ),
    Pass(
        "RewritePaddingBeforeNorm",
        "a convolution before a batch norm has its padding in numbers",
        rewrite_padding_before_norm,
        modes=(QAT,),
    ),
    Pass(
        "RewriteLinearBeforeNorm",
        "a linear layer before a batch norm is a convolution",
        rewrite_linear_before_norm,
        requires=("FuseLinearAdd",),
        modes=(QAT,),
    ),
    Pass(
        "NormalizeEpsilon",
        "the epsilon of every batch norm is 1e-5",
        normalize_epsilon,
        requires=("RewriteLinearBeforeNorm",),
        modes=(QAT,),
    ),
    Pass(
        "AddBiasBeforeNorm",
        "a convolution before a batch norm has a bias",
        add_bias_before_norm,
        requires=("RewriteLinearBeforeNorm",),
        modes=(QAT,),
    ),
    Pass(
        "MoveActivationBeforeCat",
        "an activation stands where it can be fused",
        move_activation_before_cat,
    ),
    _TAKE_FROM_PARTS,
    Pass(
        "DuplicateSharedBiases",
        "every bias has one reader",
        duplicate_shared_biases,
    ),
)
check_order(ATEN_PASSES)
