"""What can be asked of `ExportRecipe.get_recipe`."""

from __future__ import annotations

from executorch.export import RecipeType


class NeutronRecipeType(RecipeType):
    """The NPU; what it does not take stays float on the CPU."""

    INT8_PTQ = "neutron_int8_ptq"
    INT8_QAT = "neutron_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "neutron"


class NXPRecipeType(RecipeType):
    """The recipes of ExecuTorch's NXP backend, by its names; NO_DELEGATE is quantized, and all on the CPU."""

    INT8_PTQ_NEUTRON = "nxp_int8_ptq_neutron"
    INT8_PTQ_NO_DELEGATE = "nxp_int8_ptq_no_delegate"
    INT8_QAT_NEUTRON = "nxp_int8_qat_neutron"
    INT8_QAT_NO_DELEGATE = "nxp_int8_qat_no_delegate"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "nxp"


class CortexMRecipeType(RecipeType):
    """The CPU alone, in int8."""

    INT8_PTQ = "cortex_m_int8_ptq"
    INT8_QAT = "cortex_m_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "cortex_m"


class NpuCpuRecipeType(RecipeType):
    """The NPU, and in int8 on the CPU what it does not take."""

    NPU_CPU_INT8_PTQ = "npu_cpu_int8_ptq"
    NPU_CPU_INT8_QAT = "npu_cpu_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "npu_cpu"


class IMXRT700RecipeType(RecipeType):
    """The same by the name it had when one chip was supported."""

    IMXRT700_INT8_PTQ = "imxrt700_int8_ptq"
    IMXRT700_INT8_QAT = "imxrt700_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "imxrt700"
