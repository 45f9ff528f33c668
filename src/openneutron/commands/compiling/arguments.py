"""The options of every command that compiles, and the values they take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from openneutron.inputs.source import add_model_options
from openneutron.models.preprocessing import FITS
from openneutron.options import AIMS, CONVERTERS
from openneutron.quantize.plan import HELP as ACCURACY
from openneutron.recipes.recipe import ALIASES, NEUTRON, RECIPES
from openneutron.targets.table import DEFAULT_TARGET, TARGETS
from openneutron.targets.what_if import SUFFIX

_YES_NO = argparse.BooleanOptionalAction


def add_compile_options(parser: argparse.ArgumentParser, output: bool = True) -> None:
    """The options of every command that compiles; those of ExecuTorch's NXP example keep their names."""
    add_model_options(parser)
    if output:
        parser.add_argument(
            "-o", "--output", metavar="OUT.pte", help="the program to write (default: <model>.pte)"
        )
    add = partial(_add, parser)
    _add_target(parser)
    _add_what_computes(add)
    _add_quantizing(parser, add)
    _add_samples(add)
    _add_delegation(add)
    _add_memory(add)
    _add_outputs(add)


def _add(parser: argparse.ArgumentParser, *names: str, **how: Any) -> None:
    """Add an option; one that ExecuTorch's example writes with underscores is taken with hyphens too."""
    hyphens = [name.replace("_", "-") for name in names if "_" in name]
    parser.add_argument(*names, *hyphens, **how)


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    names = f"{', '.join(TARGETS)} (default: {DEFAULT_TARGET})"
    add("--target", default=DEFAULT_TARGET, metavar="TARGET", help=names)
    add("--target-file", dest="target", type=chip_file, metavar="CHIP.toml", help="a chip of your own making")


def _add_what_computes(add: Callable[..., None]) -> None:
    add("--converter", choices=CONVERTERS, help="open (default): OpenNeutron's firmware; eiq: NXP silicon")
    listing = "; ".join(f"{recipe.name}: {recipe.help}" for recipe in RECIPES.values())
    add("--recipe", choices=[*RECIPES, *ALIASES], default=NEUTRON.name, help=f"what computes ({listing})")
    add("--core", metavar="CORE", help="the CPU of --recipe (default: the chip's)")
    add("--verify", action=_YES_NO, default=True, help="run the program once and compare it (default)")
    add("-q", "--quantize", action=_YES_NO, default=True, help="quantize to int8 (default)")
    add("-d", "--delegate", action=_YES_NO, default=True, help="delegate to the NPU (default)")


def _add_quantizing(parser: argparse.ArgumentParser, add: Callable[..., None]) -> None:
    add("--use_qat", action="store_true", help="quantization-aware training of a zoo classifier")
    add_weight_options(parser)
    add("--accuracy", metavar="PLAN", help=f"what is done when quantizing ({ACCURACY})")
    add(
        "--keep_float",
        nargs="+",
        default=(),
        metavar="LAYER",
        help="layers that are not quantized and stay on the CPU, as `openneutron compare` names them",
    )
    add(
        "--keep_float_budget",
        type=parse_share,
        metavar="SHARE",
        help="keep layers float that give most at the outputs for at most so many more cycles, e.g. 10%% "
        "(default: 5%% where an output stays below 20 dB; 0: none)",
    )
    add(
        "--quantize-remainder",
        action="store_true",
        help="of a quantized model, quantize what is float in it; what is int8 stays exactly as it is",
    )


def _add_samples(add: Callable[..., None]) -> None:
    add(
        "--calibration",
        metavar="DIR|FILE",
        help="calibration inputs: .npz, .npy, .pt or a folder of arrays or images",
    )
    add(
        "--calibration-samples",
        type=int,
        default=128,
        metavar="N",
        help="use at most N of them (default 128); frames of sequences eight times as many",
    )
    add(
        "--sequence",
        action="store_true",
        help="of a model that remembers: the samples follow one another (else each begins anew; a folder per "
        "sequence, or an array with sequences first and time second, says it by itself)",
    )
    add("--mean", nargs="+", type=float, metavar="M", help="of images: (pixel * scale - mean) / std")
    add("--std", nargs="+", type=float, metavar="S", help="one, or one per channel")
    add(
        "--scale",
        type=float,
        metavar="F",
        help="of pixels from 0 to 255 (default with --mean or --std: 1/255)",
    )
    add("--fit", choices=FITS, help="how an image gets the input's size (default: stretch)")
    add("--preprocess", metavar="FILE.py:FUNCTION", help="makes an input of a PIL image, instead of these")
    add("--use_random_dataset", action="store_true", help="calibrate on random inputs")


def _add_delegation(add: Callable[..., None]) -> None:
    add("-r", "--remove-quant-io-ops", action="store_true", help="int8 program inputs and outputs")
    add(
        "--use_channels_last_dim_order",
        action="store_true",
        help="the program takes its 4-D inputs channels last",
    )
    add(
        "--operators_not_to_delegate",
        nargs="+",
        default=(),
        metavar="OP",
        help="operators that stay on the CPU, by exact name, e.g. aten::add",
    )


def _add_memory(add: Callable[..., None]) -> None:
    add(
        "--fetch_constants_to_sram",
        action="store_true",
        help="weights stay in flash and are prefetched",
    )
    add("--sram", type=parse_size, metavar="BYTES", help="SRAM the program may use, e.g. 512K (default: all)")
    add(
        "--optimise",
        "--optimize",
        choices=AIMS,
        default=AIMS[0],
        help="performance (default), or size: the least SRAM, in stripes of rows, for a few more cycles",
    )
    add(
        "--cycle-budget",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="estimated cycles that size may add (default 0.05)",
    )
    add(
        "--keep-inputs",
        action="store_true",
        help="size leaves inputs and outputs in memory of their own (default: they lie in one arena with "
        "activations, and an input is overwritten when it is not needed any more)",
    )


def _add_outputs(add: Callable[..., None]) -> None:
    add(
        "--dump_kernel_selection_code",
        action="store_true",
        help="write <model>_kernel_selection.c beside the program",
    )
    add(
        "--use_profiling",
        action="store_true",
        help="write the ETRecord beside the program; with eiq, the NPU program records times too",
    )
    add("--extra-flags", metavar="FLAGS", help="flags for the eiq converter")
    add("--intermediates", metavar="DIR", help="keep the LiteRT models before and after conversion")
    add("-s", "--so_library", metavar="LIB", help="load a library of custom operators first")


def add_weight_options(parser: argparse.ArgumentParser) -> None:
    """One scale for the weights of a layer, or one for each of its output channels."""
    add = parser.add_mutually_exclusive_group().add_argument
    add(
        "--per-channel", action="store_true", default=None, help="a weight scale per output channel (default)"
    )
    add("--per-tensor", action="store_false", dest="per_channel", help="one weight scale for a whole layer")


def chip_file(text: str) -> str:
    """The name of a file that describes a chip."""
    if not text.endswith(SUFFIX):
        raise argparse.ArgumentTypeError(f"the name of a chip's file ends in {SUFFIX} (got {text!r})")
    return text


def parse_share(text: str) -> float:
    """A share: 5% or 0.05."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share (e.g. 5% or 0.05, or 0 for none)")
    return share


def parse_size(text: str) -> int:
    """A number of bytes, with K or M for 1024 and 1024 * 1024."""
    factor = {"K": 1024, "M": 1024 * 1024}.get(text[-1:].upper(), 1)
    try:
        return int(float(text[:-1]) * factor) if factor > 1 else int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size (e.g. 524288, 512K, 1.5M)") from None
