"""OpenNeutron in ExecuTorch's shared operator suite: a flow as its `backends/test/suite/flows` have them."""

from __future__ import annotations

from executorch.backends.test.harness import Tester
from executorch.backends.test.harness.stages import Quantize, StageType, ToEdgeTransformAndLower
from executorch.backends.test.suite.flow import TestFlow

from openneutron import NeutronPartitioner, NeutronQuantizer
from openneutron.run.delegate import load_runtime


class OpenNeutronTester(Tester):
    """Quantizes and lowers with OpenNeutron; the simulator runs the program in this process."""

    def __init__(self, module, example_inputs, dynamic_shapes=None):
        load_runtime()
        stages = Tester.default_stage_classes() | {
            StageType.QUANTIZE: create_quantize_stage,
            StageType.TO_EDGE_TRANSFORM_AND_LOWER: lambda: ToEdgeTransformAndLower(NeutronPartitioner),
        }
        super().__init__(module, example_inputs, stages, dynamic_shapes)


def create_quantize_stage() -> Quantize:
    """Static int8 by calibration."""
    return Quantize(quantizer=NeutronQuantizer())


OPENNEUTRON_INT8_FLOW = TestFlow(
    name="openneutron_int8",
    backend="openneutron",
    tester_factory=OpenNeutronTester,
    quantize=True,
    quantize_stage_factory=create_quantize_stage,
)
