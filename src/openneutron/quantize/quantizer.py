"""NeutronQuantizer: the PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule
from torchao.quantization.pt2e import DerivedObserverOrFakeQuantize
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron import ops
from openneutron.environment.stopwatch import QUANTIZER, stage
from openneutron.ops.spec import OPEN
from openneutron.passes import ATEN_PASSES, PTQ, QAT, run_passes
from openneutron.passes.graph import constant
from openneutron.quantize.annotation.annotate import Annotator, Find
from openneutron.quantize.annotation.borders import different_parts
from openneutron.quantize.annotation.concatenations import separate_parts
from openneutron.quantize.annotation.masks import fit_masks
from openneutron.quantize.annotation.number_formats import Scheme, let_bias_fit
from openneutron.quantize.annotation.sharing import NextState
from openneutron.targets.spec import NeutronTargetSpec


class NeutronQuantizer(Quantizer):
    """Quantizes what Neutron computes to int8, as the operator table says; the rest stays float.

    Use it with torchao's `prepare_pt2e` (or `prepare_qat_pt2e` with `is_qat=True`) and `convert_pt2e`. Nodes
    that another quantizer has annotated are left to it: it can be one of several in a `ComposableQuantizer`.
    Layers named in `keep_float`, as `openneutron compare` names them, stay float and thus on the CPU. With
    example inputs, tensors of very different size that are joined at the outputs keep scales of their own.
    `states` are inputs, by name, each with the output that it is in the next run.
    """

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        is_qat: bool = False,
        *,
        per_channel: bool = False,
        keep_float: Collection[str] = (),
        find: Find = ops.find,
        examples: Sequence[tuple[Any, ...]] = (),
        states: Mapping[str, NextState] | None = None,
    ):
        super().__init__()
        self.neutron_target_spec = neutron_target_spec or NeutronTargetSpec()
        self.is_qat = is_qat
        self.per_channel = per_channel
        self._scheme = Scheme(is_qat, per_channel)
        self._find = find
        self.keep_float = tuple(keep_float)
        self._examples = tuple(examples)
        self._states = dict(states or {})

    @property
    def quantizers(self) -> list[Quantizer]:
        """The quantizers it consists of, as those that are several have it: itself, for every operator."""
        return [self]

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Bring the graph into the form the operator table describes; its results stay the same."""
        with stage(QUANTIZER):
            model = run_passes(model, ATEN_PASSES, QAT if self.is_qat else PTQ)
            fit_masks(model, self._examples)
            if self.neutron_target_spec.converter == OPEN:
                separate_parts(model, self._examples, self._find, self._states)
            return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Say of every tensor how it is to be quantized."""
        with stage(QUANTIZER):
            converter = self.neutron_target_spec.converter
            apart = different_parts(model, self._examples, self._find, self._states)
            annotator = Annotator(self._scheme, self._find, self.keep_float, converter=converter, apart=apart)
            annotator.states = self._states
            annotator.annotate(model)
        return model

    def prepare_obs_or_fq_callback(
        self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]
    ) -> None:
        """Let the scale of every layer's weights leave room for its bias."""
        leave_room_for_biases(model, edge_or_node_to_obs_or_fq)

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: a node that was not annotated stays float, and the partitioner says why."""


def leave_room_for_biases(model: GraphModule, observers: dict[Any, Any]) -> None:
    """Tell the observers of weights, of those of all edges, which bias their scales must leave room for."""
    for edge, observer in observers.items():
        if isinstance(edge, tuple) and isinstance(observer, DerivedObserverOrFakeQuantize):
            let_bias_fit(observer, constant(model, edge[0]))
