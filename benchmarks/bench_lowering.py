"""From a float module to a .pte: CPU seconds by stage, for MobileNetV2-224 or another model.

The bar: everything but torch.export and torchao takes at most 10 s for MobileNetV2-224.

python benchmarks/bench_lowering.py [zoo name]
"""

from __future__ import annotations

import resource
import sys
import time
import warnings

from openneutron.models.zoo import build_model, example_inputs
from openneutron.pipeline import compile_model
from openneutron.stopwatch import NOT_OURS, record

BAR = 10.0


def main(name: str = "mobilenet_v2") -> None:
    """Print one line per stage."""
    warnings.simplefilter("ignore")
    compile_model(build_model("dscnn"), example_inputs("dscnn"), calibration=[example_inputs("dscnn")])
    samples = [example_inputs(name, seed) for seed in range(4)]
    wall = time.perf_counter()
    with record() as seconds:  # imports are behind us: they are the same for every model
        compiled = compile_model(build_model(name), samples[0], calibration=samples)
    wall = time.perf_counter() - wall
    print(f"{name:<34}{'CPU s':>9}{'share':>8}")
    for stage, spent in seconds.spent.items():
        mark = "" if stage in NOT_OURS else "  *"
        print(f"{stage:<34}{spent:>9.2f}{spent / seconds.total:>8.0%}{mark}")
    print(f"{'all':<34}{seconds.total:>9.2f}")
    print(f"{'* all but torch.export, torchao':<34}{seconds.own:>9.2f}   bar: {BAR:.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"wall {wall:.1f} s, peak memory {peak:.0f} MiB, partitions {len(compiled.partitions)}, "
          f"nodes left on the CPU {len(compiled.rejected)}")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:2])
