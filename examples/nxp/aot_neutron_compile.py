"""The example program of ExecuTorch's NXP backend, with the same options, on OpenNeutron.

    python -m examples.nxp.aot_neutron_compile --quantize --delegate -m cifar10

writes `cifar10_nxp_delegate.pte`. All it does is call `openneutron compile` (or `eval`, with --test), which
has more options, takes other models than the zoo's, and quantizes and delegates without being asked.
"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from openneutron.cli import main as openneutron
from openneutron.targets.table import DEFAULT_TARGET

# Options that are passed on as they are.
FLAGS = (
    "use_qat",
    "use_profiling",
    "debug",
    "use_channels_last_dim_order",
    "dump_kernel_selection_code",
    "use_random_dataset",
    "fetch_constants_to_sram",
)
FILES = (".pt2", ".onnx", ".tflite")  # which may be quantized already


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the NXP backend's example."""
    parser = argparse.ArgumentParser(prog="aot_neutron_compile", description="Compile a model for Neutron.")
    add = parser.add_argument
    add(
        "-m",
        "--model_name",
        required=True,
        help="cifar10, mobilenetv2, mlperf_tiny_image_classification or any MODEL of `openneutron compile`",
    )
    add("-d", "--delegate", action="store_true", help="delegate to the NPU")
    add("--target", default=DEFAULT_TARGET, help="the target id")
    add("-q", "--quantize", action="store_true", help="quantize to int8")
    add("--use_qat", action="store_true", help="quantization-aware training")
    add("--use_profiling", action="store_true", help="a program that records times")
    add("-s", "--so_library", help="a library of custom operators")
    add("--debug", action="store_true", help="show all messages and tracebacks")
    add("-t", "--test", action="store_true", help="measure the accuracy: float, quantized, simulator")
    add("-r", "--remove-quant-io-ops", action="store_true", help="int8 inputs and outputs")
    add("--operators_not_to_delegate", nargs="*", default=[], metavar="OP", help="operators for the CPU")
    add("--visualize", choices=("show", "store"), help="store the report as a web page; show: open it")
    add("--use_channels_last_dim_order", action="store_true", help="channels-last inputs")
    add("--dump_kernel_selection_code", action="store_true", help="write the kernel-selection file")
    add("--use_random_dataset", action="store_true", help="calibrate on random inputs")
    add("-dst", "--dataset_path", help="samples to calibrate on: a folder, .npz, .npy or .pt file")
    add("--fetch_constants_to_sram", action="store_true", help="weights stay in flash and are prefetched")
    return parser.parse_args(argv)


def command(args: argparse.Namespace) -> list[str]:
    """The same as an `openneutron` command."""
    stem = Path(args.model_name.split(":")[0]).stem
    profile = "_profile" if args.use_profiling else ""
    output = f"{stem}_nxp_delegate{profile}.pte" if args.delegate else f"{stem}.pte"
    words = ["eval" if args.test else "compile", args.model_name, "-o", output, "--target", args.target]
    words += ["--quantize" if args.quantize else "--no-quantize"]
    if args.quantize and not args.model_name.endswith(FILES):
        words.append("--per-tensor")  # as the manual's quantizer does
    words += ["--delegate" if args.delegate else "--no-delegate"]
    words += [f"--{flag}" for flag in FLAGS if getattr(args, flag)]
    if args.remove_quant_io_ops:
        words.append("-r")
    if args.so_library:
        words += ["--so_library", args.so_library]
    if args.dataset_path:
        words += ["--calibration", args.dataset_path]
    if args.operators_not_to_delegate:
        words += ["--operators_not_to_delegate", *args.operators_not_to_delegate]
    if args.visualize and not args.test:
        words += ["--report", page(output)]
    return words


def page(output: str) -> str:
    """Where the web page goes."""
    return str(Path(output).with_suffix(".html"))


def main(argv: Sequence[str] | None = None) -> int:
    """Translate the options and run."""
    args = parse(argv)
    words = command(args)
    code = openneutron(words)
    if code == 0 and args.visualize == "show" and not args.test:
        webbrowser.open(Path(page(words[3])).resolve().as_uri())
    return code


if __name__ == "__main__":
    sys.exit(main())
