"""The zoo through the whole pipeline: one partition each, nothing left on the CPU, LiteRT's bits."""

from functools import partial

import pytest

from openneutron.compiler.microcode.format import Kernel
from openneutron.models.zoo import ZOO, build_model
from openneutron.options import CompileOptions
from tests.programs import Inputs, assert_runs_exactly, compiled_for, random_inputs, transposes

# Transposes the NPU has to do for contiguous and for channels-last inputs. The vision transformer's are its
# attention heads'; a network over (batch, channels, time) has one at its input; one channel needs none.
TRANSPOSES = {
    "cifarnet": (1, 0),
    "resnet8": (1, 0),
    "dscnn": (0, 0),
    "mobilenet_v1_vww": (1, 0),
    "mobilenet_v2": (1, 0),
    "autoencoder": (0, None),
    "tcn": (1, None),
    "gru": (0, None),
    "tiny_vit": (5, 4),
}
# Lowering these takes ExecuTorch longest.
LARGE = ("mobilenet_v1_vww", "mobilenet_v2", "gru", "tiny_vit")


def inputs_of(name: str, channels_last: bool, seed: int) -> Inputs:
    return random_inputs(ZOO[name].input_shapes, seed, channels_last)


def cases() -> list:
    return [
        pytest.param(name, last, id=f"{name}-{'channels_last' if last else 'contiguous'}",
                     marks=[pytest.mark.slow] if name in LARGE else [])  # large networks
        for name, counts in TRANSPOSES.items()
        for last in (False, True)
        if counts[last] is not None
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "channels_last"), cases())
def test_whole_on_the_npu(name: str, channels_last: bool) -> None:
    program = compiled_for(build_model(name), ZOO[name].input_shapes, channels_last)
    assert program.rejected == ()
    assert len(program.partitions) == 1
    steps = {op.split("::")[1].split(".")[0] for op in program.info.methods["forward"].operators}
    assert steps <= {"quantize_per_tensor", "dequantize_per_tensor"}
    assert transposes(program) == TRANSPOSES[name][channels_last]
    assert_runs_exactly(program, partial(inputs_of, name, channels_last), 10 if channels_last else 50)


@pytest.mark.parametrize(
    "name",
    [
        # Slow: large networks.
        pytest.param(n, marks=[] if n in ("cifarnet", "resnet8", "dscnn") else [pytest.mark.slow])
        for n in TRANSPOSES
    ],
)
def test_in_stripes_of_rows_it_gives_the_same_bits(name: str) -> None:
    shapes, options = ZOO[name].input_shapes, CompileOptions(optimise="size")
    program = compiled_for(build_model(name), shapes, options=options)
    assert (Kernel.CASCADE.name in program.kernels) == (name not in ("autoencoder", "gru", "tiny_vit"))
    assert_runs_exactly(program, partial(inputs_of, name, False), 3)
