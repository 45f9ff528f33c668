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


class CortexMRecipeType(RecipeType):
    """The CPU alone, in int8."""

    INT8_PTQ = "cortex_m_int8_ptq"
    INT8_QAT = "cortex_m_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "cortex_m"


class IMXRT700RecipeType(RecipeType):
    """The NPU, and in int8 on the CPU what it does not take."""

    IMXRT700_INT8_PTQ = "imxrt700_int8_ptq"
    IMXRT700_INT8_QAT = "imxrt700_int8_qat"

    @classmethod
    def get_backend_name(cls) -> str:
        """The name its provider is registered by."""
        return "imxrt700"
