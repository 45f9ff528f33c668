"""Scratch memory of known networks: ours, the lower bound of its order, and what NXP published."""

from __future__ import annotations

from networks import NETWORKS

from openneutron.compiler.fuse import fuse
from openneutron.compiler.legalize import import_graph
from openneutron.compiler.schedule import make_schedule, plan_memory

NXP = {"CifarNet": 40_960, "MobileNetV1-0.25-128": 98_304, "DS-CNN (MLPerf Tiny)": 16_000}


def main() -> None:
    """Print the table."""
    print(f"{'network':<24}{'scratch':>10}{'bound':>10}{'gap':>8}{'NXP':>10}  order / offsets by")
    for name, make in NETWORKS.items():
        try:
            graph = make()
        except FileNotFoundError as error:
            print(f"{name:<24}skipped: {error.filename} is absent")
            continue
        plan = plan_memory(make_schedule(fuse(import_graph(graph))))
        order = "optimal" if plan.schedule.order.optimal else "heuristic"
        nxp = f"{NXP[name]:,}" if name in NXP else "-"
        print(f"{name:<24}{plan.scratch_bytes:>10,}{plan.placement.bound:>10,}{plan.placement.gap:>8.2%}{nxp:>10}"
              f"  {order} / {plan.placement.method}")  # fmt: skip


if __name__ == "__main__":
    main()
