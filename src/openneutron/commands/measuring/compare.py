"""Error of every layer, worst first: float vs quantized PyTorch vs the simulator, and what would help.

SQNR is the power of the float result over the power of its error, in decibel: 40 is what eight bits give,
below 30 a layer gets a suggestion. `own` is what it adds when its inputs are exact; the rest is inherited.
`simulator` is the largest difference between simulator and quantized PyTorch in steps of the layer's scale:
PyTorch computes in float what the NPU computes in integers, each layer may add a step, and they travel on.
Suggestions come from figures (`--json` has them all); --try quantizes the model anew to see what they do.
With --board the program runs on a board as well: layers stay with the host, but every sample's outputs are
compared with the host's and with the float model's, beside the time that each took.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from openneutron.commands.compiling.arguments import add_compile_options
from openneutron.commands.compiling.compile import compile_options, load_model
from openneutron.commands.devices.board import add_board_arguments, check_board_arguments
from openneutron.diagnostics import fail
from openneutron.inputs.model import Source
from openneutron.inputs.source import MODEL_HELP
from openneutron.quantize.plan import DEFAULT

if TYPE_CHECKING:
    from openneutron.accuracy.compare import Comparison
    from openneutron.accuracy.layer_error import LayerError
    from openneutron.commands.progress import Steps
    from openneutron.recipes.quantize_options import QuantizeOptions

NAME = "compare"
HELP = "per-layer error: float vs quantized vs simulator, with suggestions"
SHOWN = 10  # suggestions printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    add_compile_options(parser)
    parser.add_argument(
        "--samples", type=int, default=4, metavar="N", help="compare on N samples (default 4)"
    )
    parser.add_argument(
        "--inputs",
        metavar="DIR|FILE",
        help="compare on these inputs: .npz, .npy or a folder (default: the zoo's test data, else what "
        "calibrates)",
    )
    parser.add_argument(
        "--try",
        dest="tries",
        type=int,
        default=0,
        metavar="N",
        help="quantize the model anew with up to N of the suggestions and print the error of its outputs",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_board_arguments(parser)


def execute(args: argparse.Namespace) -> None:
    """Run the model three ways and print the differences."""
    from openneutron.commands.progress import Steps

    steps = Steps()
    source = _checked_source(args, steps)

    from openneutron.commands.compiling.quantizing import calibration_samples
    from openneutron.inputs.samples import outside

    calibration = calibration_samples(args, source, steps)
    samples = _samples(args, source, calibration)
    if strange := outside(samples, calibration):
        steps.note(f"{len(strange)} of {len(samples)} samples leave the range calibration has seen, by more "
                   f"than a tenth of it; the first is {strange[0]}")  # fmt: skip
    args.keep_float = _with_budget(args, source, calibration, steps)
    comparison = compare_as_asked(args, source, samples, calibration, steps)
    rows = comparison.layers
    trials = _trials(args, source, samples, calibration, rows, steps) if args.tries else []
    board = _on_board(args, source, samples, calibration, steps) if args.board else None
    if args.json:
        outputs = {output.node: output.as_dict() for output in comparison.outputs}
        layers = [{**row.as_dict(), "output": outputs.get(row.layer)} for row in rows]
        data = {
            "layers": layers,
            "outputs": [output.as_dict() for output in comparison.outputs],
            "accuracy": comparison.refined.as_dict(),
            "trials": trials,
        }
        if board:
            data["board"] = board.data
        print(json.dumps(data if args.tries or board else layers, indent=2))
    else:
        _print(rows)
        _print_outputs(comparison, len(samples))
        _print_trials(trials)
        if board:
            _print_board(board.data)
    if board:
        board.check()  # last: the figures say where it went wrong


def _checked_source(args: argparse.Namespace, steps: Steps) -> Source:
    """The float model; what leaves nothing to compare is refused."""
    check_board_arguments(args)
    if args.board and args.remove_quant_io_ops:
        fail("ON104", "option -r", "compare feeds the inputs as they are in the data", "Leave it out.")
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
    if args.use_qat:
        fail("ON104", "option --use_qat", "training changes the float model too: there is nothing to compare",
             "Leave it out; `openneutron eval --use_qat` gives accuracies.")  # fmt: skip
    if args.samples < 1:
        fail("ON104", "option --samples", f"must be positive (got {args.samples})")
    return source


def _with_budget(
    args: argparse.Namespace, source: Source, calibration: list[Any], steps: Steps
) -> tuple[str, ...]:
    """The layers to keep float: those named, and those that a budget pays for."""
    if not args.keep_float_budget:
        return tuple(args.keep_float)
    from openneutron.recipes.quantize_options import choose_float
    from openneutron.report.terminal import kept_float_text

    how = replace(_how(args), keep_float=sorted(args.keep_float), keep_float_budget=args.keep_float_budget)
    with steps.step("Choosing what to keep float", bar=True) as advance:
        layers, kept = choose_float(source.module, calibration, how, advance)
    steps.note(kept_float_text(kept))
    return (*args.keep_float, *layers)


def layer_errors(
    args: argparse.Namespace, source: Source, steps: Steps, samples: int = 4
) -> list[dict[str, Any]]:
    """The errors for a report on a model that these options compile; empty if nothing can be compared."""
    changed = args.use_qat or not args.quantize or args.converter == "eiq"
    if source.module is None or source.quantized or changed:
        return []
    from openneutron.accuracy.suggest import error_rows
    from openneutron.commands.compiling.quantizing import calibration_samples
    from openneutron.commands.progress import Steps as Quiet

    calibration = calibration_samples(args, source, Quiet(quiet=True))  # its remark was made before
    given = argparse.Namespace(**{"inputs": None, **vars(args), "samples": samples})
    return error_rows(
        compare_as_asked(args, source, _samples(given, source, calibration), calibration, steps).layers
    )


def compare_as_asked(
    args: argparse.Namespace, source: Source, samples: list[Any], calibration: list[Any], steps: Steps
) -> Comparison:
    """The comparison that these options ask for; the source has a float model."""
    from openneutron.accuracy.compare import compare_model

    assert source.module is not None
    with steps.step("Comparing", bar=True) as advance:
        return compare_model(source.module, samples, calibration, _how(args), advance)


def _how(args: argparse.Namespace) -> QuantizeOptions:
    """How these options quantize."""
    from openneutron.recipes.quantize_options import QuantizeOptions

    return QuantizeOptions(
        per_channel=args.per_channel is not False,
        accuracy=args.accuracy or DEFAULT,
        keep_float=args.keep_float,
        recipe=args.recipe,
        core=args.core,
        compiling=compile_options(args),
    )


def _samples(args: argparse.Namespace, source: Source, calibration: list[Any]) -> list[Any]:
    """Inputs that calibration has not seen, where there are any: they show what it missed."""
    from pathlib import Path

    from openneutron.commands.compiling.quantizing import channels_last, dataset_of, preprocessing_of
    from openneutron.inputs.samples import load_samples

    if args.inputs:
        samples: list[Any] = load_samples(
            Path(args.inputs), source.example_inputs, args.samples, preprocessing_of(args)
        )
    elif not args.calibration and source.calibration is None and not args.use_random_dataset:
        data = dataset_of(source, None)
        if data is None:
            return calibration[: args.samples]
        inputs = data.test.inputs[: args.samples]
        samples = [(inputs[i : i + 1],) for i in range(len(inputs))]
    else:
        return calibration[: args.samples]
    return [channels_last(s) for s in samples] if args.use_channels_last_dim_order else samples


def _trials(
    args: argparse.Namespace,
    source: Source,
    samples: list[Any],
    calibration: list[Any],
    rows: list[LayerError],
    steps: Steps,
) -> list[dict[str, Any]]:
    from openneutron.accuracy.compare import try_suggestions

    assert source.module is not None
    with steps.step("Trying suggestions", bar=True) as advance:
        tried = rows, args.tries
        trials = try_suggestions(source.module, samples, calibration, *tried, _how(args), advance)
    return [{"trial": name, "output_sqnr_db": None if math.isinf(db) else db} for name, db in trials]


@dataclass(frozen=True)
class _OnBoard:
    """What a board computed for the samples, as data, and the host's outputs beside its own."""

    data: dict[str, Any]
    outputs: list[list[Any]]
    host: list[list[Any]]

    def check(self) -> None:
        """Fail if an output is not the host's."""
        from openneutron.commands.devices.board import check_outputs

        check_outputs("board", self.outputs, self.host)


def _on_board(
    args: argparse.Namespace, source: Source, samples: list[Any], calibration: list[Any], steps: Steps
) -> _OnBoard:
    """Compile the model, run every sample on the board, and put its outputs beside the others'."""
    from pathlib import Path

    import numpy as np
    import torch

    from openneutron.board.arrays import Comparison, difference
    from openneutron.commands.compiling.compile import compile_source
    from openneutron.commands.devices.board import host_outputs, measure_file
    from openneutron.files import scratch_folder

    given = replace(source, calibration=calibration if source.calibration is not None else None)
    words = {**vars(args), "keep_float_budget": 0.0}  # what it buys is chosen already
    inputs = [[np.asarray(value) for value in sample] for sample in samples]
    with scratch_folder() as folder:
        words["output"] = args.output or str(Path(folder) / "model.pte")
        result = compile_source(argparse.Namespace(**words), given, steps)
        method, _, run = measure_file(args, result.output, inputs, steps)
        host = host_outputs(result.output.read_bytes(), method, inputs)
    if isinstance(host, str):
        fail("ON513", args.model, host)
    assert source.module is not None
    module = source.module if isinstance(source.module, torch.nn.Module) else source.module.module()
    rows: list[dict[str, Any]] = []
    scale = run.firmware.instructions_per_microsecond or 1
    for number, (sample, ours, theirs) in enumerate(zip(samples, run.outputs, host, strict=True)):
        pairs = zip(ours, theirs, strict=True)
        equal = sum((difference(np.asarray(a), np.asarray(b)) for a, b in pairs), Comparison())
        with torch.no_grad():
            exact = module(*sample)
        rows.append({"sample": number, "time": run.microseconds[number] * scale, "values": equal.values,
                     "equal": equal.equal, **_beside_float(ours, exact)})  # fmt: skip
    data = {
        "port": args.board,
        "firmware": run.firmware.name,
        "time": run.statistics(),
        "time_us_estimated": result.summary["time_us_estimated"],
        "samples": rows,
    }
    return _OnBoard(data, run.outputs, host)


def _beside_float(ours: list[Any], exact: Any) -> dict[str, float | None]:
    """How far the float outputs of one sample are from the float model's; no SQNR if they are equal."""
    import numpy as np
    import torch
    from torch.utils import _pytree as pytree

    from openneutron.quantize.prepared_model.quality import decibel

    leaves = [leaf for leaf in pytree.tree_leaves(exact) if leaf is not None]
    signal = noise = worst = 0.0
    for one, two in zip(ours, leaves, strict=True):
        if isinstance(two, torch.Tensor) and two.is_floating_point():
            wanted = two.double().numpy()
            error = np.asarray(one, np.float64).reshape(wanted.shape) - wanted
            signal, noise = signal + float((wanted**2).sum()), noise + float((error**2).sum())
            worst = float(np.maximum(worst, np.abs(error).max(initial=0.0)))  # not a number stays that
    sqnr_db = decibel(signal, noise)
    return {
        "sqnr_db": sqnr_db if math.isfinite(sqnr_db) else None,
        "max_error": worst if math.isfinite(worst) else None,
    }


def _print(rows: list[LayerError]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("layer", "operator"):
        table.add_column(name)
    for name in ("SQNR dB", "own dB", "max error", "cosine", "simulator dB", "simulator"):
        table.add_column(name, justify="right")
    for row in rows:
        on_npu = row.simulator_lsb is not None
        table.add_row(
            row.layer,
            row.op,
            f"{row.sqnr_db:.1f}",
            "-" if math.isinf(row.own_sqnr_db) else f"{row.own_sqnr_db:.1f}",
            f"{row.max_error:.4g}",
            f"{row.cosine:.5f}",
            f"{row.simulator_sqnr_db:.1f}" if on_npu else "CPU",
            f"{row.simulator_lsb} LSB" if on_npu else "",
        )
    console = make_console()
    console.print(table)
    given = [row for row in rows if row.suggestion is not None]
    console.print()
    if not given:
        console.print("Every layer is already above the threshold: nothing to suggest.")
        return
    # What begins an error before what only inherits one.
    given.sort(key=lambda row: row.suggestion is not None and row.suggestion.kind == "inherited")
    for row in given[:SHOWN]:
        assert row.suggestion is not None
        console.print(f"{row.layer}: {row.suggestion.text}", soft_wrap=True)
    if len(given) > SHOWN:
        console.print(f"... and {len(given) - SHOWN} more; --json has all of them", style="dim")


def _print_outputs(comparison: Comparison, samples: int) -> None:
    """Whether int8 is good enough: every output, the worst samples, and what was done about it."""
    from openneutron.report.terminal import make_console, print_methods

    print(f"\noutputs on {samples} samples, int8 against float:")
    for output in comparison.outputs:
        value = "exact" if math.isinf(output.sqnr_db) else f"{output.sqnr_db:.1f} dB"
        same = "" if output.agreement is None else f", the same class for {output.agreement:.0%}"
        worst = ", ".join(f"{index} ({db:.1f} dB)" for index, db in output.worst if not math.isinf(db))
        print(
            f"  {output.output} {output.node}: {value}{same}" + (f"; worst samples: {worst}" if worst else "")
        )
    print()
    print_methods(make_console(), comparison.refined.as_dict())


def _print_trials(trials: list[dict[str, Any]]) -> None:
    if trials:
        print("\nerror of the model's outputs, quantized anew:")
    for trial in trials:
        value = trial["output_sqnr_db"]
        print(f"  {'exact' if value is None else f'{value:.1f} dB'}  {trial['trial']}")


def _print_board(data: dict[str, Any]) -> None:
    from rich.table import Table

    from openneutron.report.terminal import make_console

    time = data["time"]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("sample", time["unit"], "equal to the host", "SQNR dB to float", "max error"):
        table.add_column(name, justify="right")
    for row in data["samples"]:
        worst = "-" if row["max_error"] is None else f"{row['max_error']:.4g}"
        value = (
            "exact" if row["max_error"] == 0 else "-" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f}"
        )
        equal = f"{row['equal']:,} of {row['values']:,}"
        table.add_row(str(row["sample"]), f"{row['time']:,}", equal, value, worst)
    console = make_console()
    console.print(f"\non the board ({data['firmware']}):", soft_wrap=True)
    console.print(table)
    what = "counted, not a time" if time["unit"] == "instructions" else "measured"
    console.print(f"median {time['median']:,.0f} {time['unit']} ({what}); estimated for the chip: "
                  f"{data['time_us_estimated']:,.1f} us", soft_wrap=True)  # fmt: skip
