"""What Neutron leaves of a program, in the `cortex_m` dialect: ExecuTorch's pass manager as one pass."""

from __future__ import annotations

from executorch.backends.cortex_m.edge_compile_config import cortex_m_edge_compile_config
from executorch.backends.cortex_m.passes import CortexMPassManager
from executorch.backends.cortex_m.passes.explicit_layout_pass import ValidateCortexMExplicitLayoutPass
from executorch.exir import EdgeCompileConfig
from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult
from torch.export import ExportedProgram

from openneutron.cortex_m.core import find_core
from openneutron.recipe import DEFAULT_CORE

# The check among them refuses programs with a float convolution; we know that one has its portable kernel.
_PASSES = [
    kind
    for kind in CortexMPassManager.explicit_layout_pass_list
    if kind is not ValidateCortexMExplicitLayoutPass
]


class LowerToCortexM(ExportedProgramPassBase):
    """Rewrites the quantized operators outside delegates to the `cortex_m` dialect."""

    def __init__(self, core: str = DEFAULT_CORE):
        self.target_config = find_core(core)

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """The program with its CPU operators replaced."""
        manager = CortexMPassManager(exported_program, passes=_PASSES, target_config=self.target_config)
        return ExportedProgramPassResult(manager.transform(), True)


def edge_compile_config() -> EdgeCompileConfig:
    """What Cortex-M needs of the Edge dialect, with dim orders, which Neutron needs."""
    config = cortex_m_edge_compile_config()
    config._skip_dim_order = False
    return config
