"""Test support: programs to put into firmware, and running one."""

from __future__ import annotations

from functools import cache

import torch

from openneutron.firmware.build import Firmware
from openneutron.firmware.emulator import FirmwareRun, compare, random_inputs, run_firmware, run_host
from openneutron.firmware.program import FirmwareProgram, read_firmware_program
from openneutron.models.zoo import ZOO, build_model
from openneutron.options import CompileOptions
from openneutron.package.program import CompiledProgram
from openneutron.pipeline import compile_litert
from tests.programs import compiled_for
from tests.trained import trained_model


class TwoParts(torch.nn.Module):
    """Two convolutions with a sum between them that stays on the CPU: two delegates, different kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 8, 3), torch.nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.atan(self.first(x))).flatten(1), 1)


@cache
def compiled(
    name: str, prefetch: bool = False, sram: int | None = None, optimise: str = "performance"
) -> CompiledProgram:
    """A program by name: of the zoo, a small MobileNetV2, one with two delegates, or a .tflite of others."""
    options = CompileOptions(
        fetch_constants_to_sram=prefetch,
        sram_bytes=sram,
        dump_kernel_selection_code=True,
        optimise=optimise,
    )
    if name.endswith(".tflite"):
        return compile_litert(trained_model(name.removesuffix(".tflite")).read_bytes(), options, name)
    if name == "two_parts":
        return compiled_for(TwoParts(), [(1, 2, 10, 10)], options=options)
    if name == "mobilenet_v2_small":
        model = build_model("mobilenet_v2", width=0.35, num_classes=10)
        return compiled_for(model, [(1, 3, 96, 96)], options=options)
    return compiled_for(build_model(name), ZOO[name].input_shapes, options=options)


@cache
def program(
    name: str, prefetch: bool = False, sram: int | None = None, optimise: str = "performance"
) -> FirmwareProgram:
    """The same as a firmware sees it."""
    return read_firmware_program(compiled(name, prefetch, sram, optimise).pte)


def run_and_compare(firmware: Firmware, seed: int = 0) -> FirmwareRun:
    """Run under QEMU; all outputs must be the host's."""
    inputs = random_inputs(firmware.program, seed)
    run = run_firmware(firmware, inputs, timeout=300)
    assert compare(firmware.program, run.outputs, run_host(firmware.program, inputs)) > 0
    return run
