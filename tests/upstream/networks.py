"""Networks through ExecuTorch's own NXP backend and the simulator, compared with LiteRT's reference kernels.

    python -m openneutron.sdk -m tests.upstream.networks cifarnet mobilenet_v2

The steps are those of its manual: export, quantize, partition, lower, and `nxp_executor_runner` on files. The
LiteRT model that the backend gave its converter is the reference; the program takes and returns int8, so that
nothing but the delegate computes. Exit code 1 unless all values are equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec  # noqa: TID251
from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import (  # noqa: TID251
    NeutronEdgePassManager,
)
from executorch.backends.nxp.edge_passes.remove_io_quant_ops_pass import RemoveIOQuantOpsPass  # noqa: TID251
from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner  # noqa: TID251
from executorch.backends.nxp.nxp_backend import (  # noqa: TID251
    core_aten_ops_exception_list,
    generate_neutron_compile_spec,
)
from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer  # noqa: TID251
from executorch.backends.nxp.quantizer.utils import calibrate_and_quantize  # noqa: TID251
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torch.export import export

from openneutron.litert.file import read
from openneutron.litert.reference import Reference
from openneutron.models import build_model, example_inputs

SAMPLES = 3


def lower(network: str, folder: Path) -> bytes:
    """The program, and in the folder what each partition was made of."""
    torch.manual_seed(0)
    module, inputs = build_model(network).eval(), example_inputs(network)
    target = NeutronTargetSpec("imxrt700")
    calibration = [tuple(torch.randn_like(x) for x in inputs) for _ in range(2)]
    quantized = calibrate_and_quantize(
        export(module, inputs, strict=True), calibration, NeutronQuantizer(target)
    )
    compile_spec = generate_neutron_compile_spec("imxrt700", intermediates_dir=str(folder))
    edge = to_edge_transform_and_lower(
        export(quantized, inputs, strict=True),
        transform_passes=NeutronEdgePassManager(),
        partitioner=[NeutronPartitioner(compile_spec, target, None, quantized.state_dict())],
        compile_config=EdgeCompileConfig(
            _check_ir_validity=False, _core_aten_ops_exception_list=core_aten_ops_exception_list
        ),
    )
    return edge.transform([RemoveIOQuantOpsPass(edge_program_manager=edge)]).to_executorch().buffer


def compare(network: str, folder: Path) -> bool:
    """Whether the runner's outputs are those of LiteRT's reference kernels, for every sample."""
    (folder / "network.pte").write_bytes(lower(network, folder))
    (pure,) = folder.glob("*_pure.et.tflite")
    graph = read(pure.read_bytes())
    reference, data = Reference(graph), folder / "data"
    generator = np.random.default_rng(0)
    data.mkdir()
    shape = graph.inputs[0].shape
    samples = {f"{i:04d}.bin": generator.integers(-128, 128, shape, np.int8) for i in range(SAMPLES)}
    for name, values in samples.items():
        values.tofile(data / name)
    subprocess.run(
        [os.environ["NXP_RUNNER_PATH"], "--model", str(folder / "network.pte"), "--dataset", str(data),
         "--output", str(folder / "results"), "--firmware", "-", "--nsys", "-", "--nsys_config", "-"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    equal = total = 0
    for name, values in samples.items():
        (wanted,) = reference.run([values])
        found = np.fromfile(folder / "results" / name / "0000.bin", np.int8)
        equal, total = equal + int((found == wanted.reshape(-1)).sum()), total + found.size
    print(f"{network}: {equal} of {total} values equal LiteRT's reference")
    return equal == total > 0


def main(networks: list[str]) -> int:
    """Compare each."""
    good = True
    for network in networks:
        with tempfile.TemporaryDirectory() as folder:
            good &= compare(network, Path(folder))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["cifarnet", "mobilenet_v2"]))
