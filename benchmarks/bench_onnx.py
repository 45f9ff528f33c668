"""Importing an ONNX file of 100 MB: time and peak memory beyond what the libraries take.

    python -m benchmarks.bench_onnx [MEGABYTES]

The file is a chain of linear layers. Each figure is taken in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH = 1024


def write_model(path: Path, megabytes: int) -> None:
    """A chain of linear layers of about this size."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    layers = max(1, megabytes * 2**20 // (4 * WIDTH * WIDTH))
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH, f"w{i}")
        for i in range(layers)
    ]
    nodes = [
        helper.make_node("Gemm", [f"v{i}", f"w{i}"], [f"v{i + 1}"], transB=1, name=f"layer{i}")
        for i in range(layers)
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in ("v0", f"v{layers}")]
    graph = helper.make_graph(nodes, "chain", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def measure(path: str) -> None:
    """Import the file in this process and print seconds and the growth of the peak, in bytes."""
    import openneutron.onnx.importer  # noqa: F401  # what the libraries take is not the file's
    from openneutron.onnx import load_onnx

    Path("/proc/self/clear_refs").write_text("5")  # the peak so far, the parent's among it, is forgotten
    before = _kilobytes("VmRSS")
    started = time.perf_counter()
    module = load_onnx(path)
    seconds = time.perf_counter() - started
    after = _kilobytes("VmHWM")
    assert len(list(module.parameters())) > 0
    print(f"{seconds:.3f} {(after - before) * 1024}")


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def main() -> None:
    """Write the file, import it in a new process, print the figures."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_model(path, megabytes)
        size = path.stat().st_size
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_onnx", "--measure", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, peak = map(float, done.stdout.split())
        print(
            f"file {size / 1e6:.1f} MB  import {seconds:.2f} s  peak {peak / 1e6:.1f} MB, {peak / size:.2f}x"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main()
