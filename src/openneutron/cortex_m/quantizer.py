"""ExecuTorch's Cortex-M quantizer, put together so that it works beside Neutron's, and for training.

The parts are ExecuTorch's own: its patterns, its checks, its rule for operators that share parameters. Ours
are the number formats, which must be Neutron's for the two to agree on a tensor that both touch; the formats
for training, which it lacks; and a finder that passes over what another quantizer has annotated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from executorch.backends.arm.quantizer.arm_quantizer_utils import (
    NodeFinder,
    PatternQuantizer,
    SharedQspecQuantizer,
)
from executorch.backends.cortex_m.quantizer.pattern_matcher import PatternMatcher
from executorch.backends.cortex_m.quantizer.quantization_configs import (
    CONV_TRANSPOSE_TARGETS,
    CortexMQuantizationConfig,
)
from executorch.backends.cortex_m.quantizer.quantizer_support import (
    CONV1D_OP_PATTERNS,
    CONV_OP_PATTERNS,
    CONV_TRANSPOSE_OP_PATTERNS,
    CORTEX_M_EXPLICIT_LAYOUT_QUANTIZER_SUPPORT_DICT,
)
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import ComposableQuantizer

from openneutron.cortex_m.rewrite import rewrite_for_cortex_m
from openneutron.fx import is_float, tensor_of
from openneutron.passes import ATEN_PASSES, PTQ, QAT, run_passes
from openneutron.quantize.annotation.annotate import is_annotated, leave_float
from openneutron.quantize.annotation.number_formats import Scheme
from openneutron.quantize.annotation.sharing import flatten_sharing

_BATCH_NORM = torch.ops.aten.batch_norm.default
_CONVOLUTIONS = CONV_OP_PATTERNS | CONV1D_OP_PATTERNS | CONV_TRANSPOSE_OP_PATTERNS
# While a model is trained its batch norms stand after their convolutions; torchao folds them at the end.
_NORMED = {(key[0], _BATCH_NORM, *key[1:]): check for key, check in _CONVOLUTIONS.items()}


class CortexMInt8Quantizer(ComposableQuantizer):
    """Quantizes to int8 what ExecuTorch's Cortex-M backend computes, except what is annotated already."""

    def __init__(self, is_qat: bool = False, keep_float: Collection[str] = ()):
        self.is_qat = is_qat
        self.keep_float = keep_float
        support = {**CORTEX_M_EXPLICIT_LAYOUT_QUANTIZER_SUPPORT_DICT}
        if is_qat:
            plain = {key: (key[0], *key[2:]) for key in _NORMED}
            support |= {key: support[without] for key, without in plain.items() if without in support}
        members = {target for key in (*_CONVOLUTIONS, *_NORMED) for target in key}
        matcher = PatternMatcher(support, support_dict_name="cortex_m")
        super().__init__(
            [
                PatternQuantizer(
                    _formats(Scheme(is_qat, per_channel=True)),
                    _Unannotated(members),
                    matcher,
                ),
                PatternQuantizer(_formats(Scheme(is_qat)), _Unannotated(), matcher),
                SharedQspecQuantizer(),
            ]
        )

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """The graph as Neutron's table describes it, then what Cortex-M spells differently."""
        model = run_passes(model, ATEN_PASSES, QAT if self.is_qat else PTQ)
        return rewrite_for_cortex_m(model)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Say of every tensor how it is to be quantized."""
        # A comparison of integers is not one of the numbers they stand for.
        calls = (n for n in model.graph.nodes if n.op == "call_function" and not is_annotated(n))
        other = [n.name for n in calls if tensor_of(n) is not None
                 and not (is_float(n) and _has_kernel(n) and _has_known_sizes(n))]  # fmt: skip
        leave_float(model, (*self.keep_float, *other))
        super().annotate(model)
        flatten_sharing(model)
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: a node that was not annotated stays float."""


def _has_known_sizes(node: Node) -> bool:
    """Whether all sizes are known before the run, or named; ExecuTorch's patterns compare them."""
    tensors = [t for n in (node, *node.all_input_nodes) if (t := tensor_of(n)) is not None]
    return all(isinstance(d, int) or d.node.has_hint() for t in tensors for d in t.shape)


class _Unannotated(NodeFinder):
    """Operators nobody has annotated, of these kinds if any are given."""

    def __init__(self, targets: set[Any] | None = None):
        super().__init__()
        self.targets = targets

    def find_nodes(self, model: GraphModule) -> Iterator[Node]:
        for node in model.graph.nodes:
            wanted = self.targets is None or node.target in self.targets
            if wanted and node.op == "call_function" and not is_annotated(node):
                yield node  # the program's inputs and outputs stay as they are

    def __repr__(self) -> str:
        return "operators not annotated yet"


def _has_kernel(node: Node) -> bool:
    """ExecuTorch's quantizer takes a softmax along dimensions but the last, which its kernel refuses."""
    if node.target not in (torch.ops.aten.softmax.int, torch.ops.aten._softmax.default):
        return True
    tensor, dim = tensor_of(node), node.args[1]
    assert tensor is not None and isinstance(dim, int)
    return tensor.dim() == 0 or dim % tensor.dim() == tensor.dim() - 1


def _formats(scheme: Scheme) -> CortexMQuantizationConfig:
    """Neutron's number formats in the form Cortex-M's patterns ask for them."""
    axis = 0 if scheme.per_channel else None

    class Formats(CortexMQuantizationConfig):
        def get_weight_qspec(self, node: Node | None = None) -> Any:
            transposed = node is not None and node.target in CONV_TRANSPOSE_TARGETS
            return scheme.weight(1 if transposed and scheme.per_channel else axis)

    def bias(node: Node) -> Any:
        source, weight = node.args[:2]
        assert isinstance(source, Node) and isinstance(weight, Node)
        return scheme.bias(source, weight, node, axis)

    activation = scheme.activation()
    return Formats(activation, activation, scheme.weight(axis), bias, "int8 as Neutron's")
