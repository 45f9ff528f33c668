"""NeutronQuantizer: the PT2E quantizer for Neutron."""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron import ops
from openneutron.ops.spec import OPEN
from openneutron.passes import ATEN_PASSES, PTQ, QAT, run_passes
from openneutron.quantize.annotate import Annotator, Find
from openneutron.quantize.schemes import Scheme
from openneutron.stopwatch import QUANTIZER, stage
from openneutron.target import NeutronTargetSpec


class NeutronQuantizer(Quantizer):
    """Quantizes what Neutron computes to int8, as the operator table says; the rest stays float.

    Use it with torchao's `prepare_pt2e` (or `prepare_qat_pt2e` with `is_qat=True`) and `convert_pt2e`. Nodes
    that another quantizer has annotated are left to it: it can be one of several in a `ComposableQuantizer`.
    Layers named in `keep_float`, as `openneutron compare` names them, stay float and thus on the CPU.
    """

    def __init__(
        self,
        neutron_target_spec: NeutronTargetSpec | None = None,
        is_qat: bool = False,
        *,
        per_channel: bool = False,
        keep_float: Collection[str] = (),
        find: Find = ops.find,
    ):
        super().__init__()
        self.neutron_target_spec = neutron_target_spec or NeutronTargetSpec()
        self.is_qat = is_qat
        self.per_channel = per_channel
        self._scheme = Scheme(is_qat, per_channel)
        self._find = find
        self.keep_float = tuple(keep_float)

    @property
    def quantizers(self) -> list[Quantizer]:
        """The quantizers it consists of, as those that are several have it: itself, for every operator."""
        return [self]

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Bring the graph into the form the operator table describes; its results stay the same."""
        with stage(QUANTIZER):
            return run_passes(model, ATEN_PASSES, QAT if self.is_qat else PTQ)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Say of every tensor how it is to be quantized."""
        with stage(QUANTIZER):
            islands = self.neutron_target_spec.converter == OPEN
            Annotator(self._scheme, self._find, self.keep_float, islands=islands).annotate(model)
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: a node that was not annotated stays float, and the partitioner says why."""
