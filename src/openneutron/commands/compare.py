"""Error of every layer, worst first: float vs quantized PyTorch vs the simulator.

SQNR is the power of the float result over the power of its error, in decibel: below about 20 dB a layer
is worth a look (per-channel weights, better calibration data, or keep it on the CPU). `simulator` is the
largest difference between simulator and quantized PyTorch in steps of the layer's scale: PyTorch computes
in float what the NPU computes in integers, each layer may add a step, and they travel on.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from openneutron.commands.compile import add_compile_options, compile_options, load_model
from openneutron.commands.source import MODEL_HELP
from openneutron.diagnostics import fail

NAME = "compare"
HELP = "per-layer error: float vs quantized vs simulator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_compile_options(parser)
    parser.add_argument(
        "--samples", type=int, default=4, metavar="N", help="compare on N samples (default 4)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def execute(args: argparse.Namespace) -> None:
    """Run the model three ways and print the differences."""
    from openneutron.commands.progress import Steps

    steps = Steps()
    source = load_model(args, steps)
    if source.module is None or source.quantized:
        fail(
            "ON603",
            args.model,
            "there is no float model to compare with",
            "Give the model before quantization.",
        )
    if args.converter == "eiq":
        fail("ON104", "option --converter", "NXP's microcode does not run here", "Leave it out.")

    from openneutron.commands.quantizing import calibration_samples
    from openneutron.compare import compare_layers

    calibration = calibration_samples(args, source, steps)
    with steps.step("Comparing", bar=True) as advance:
        rows = compare_layers(
            source.module,
            calibration[: max(1, args.samples)],
            calibration,
            options=compile_options(args),
            per_channel=args.per_channel,
            progress=advance,
        )
    if args.json:
        print(json.dumps([row.as_dict() for row in rows], indent=2))
    else:
        _print(rows)


def _print(rows: list[Any]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("layer", "operator"):
        table.add_column(name)
    for name in ("SQNR dB", "max error", "cosine", "simulator dB", "simulator"):
        table.add_column(name, justify="right")
    for row in rows:
        on_npu = row.simulator_lsb is not None
        table.add_row(
            row.layer,
            row.op,
            f"{row.sqnr_db:.1f}",
            f"{row.max_error:.4g}",
            f"{row.cosine:.5f}",
            f"{row.simulator_sqnr_db:.1f}" if on_npu else "CPU",
            f"{row.simulator_lsb} LSB" if on_npu else "",
        )
    make_console().print(table)
