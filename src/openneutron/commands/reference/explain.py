"""Explain a diagnostic code in full; without a code, list them all."""

from __future__ import annotations

import argparse
import textwrap

from openneutron.diagnostics import CODES, fail, nearest

NAME = "explain"
HELP = "explain a diagnostic code"

GROUPS = {
    "1": "Target, options and names",
    "2": "Why a node stays on the CPU; quantization",
    "3": "LiteRT graphs and files",
    "4": "Converter, compiler and payload",
    "5": "Runtime",
    "6": "Command line and files",
    "7": "Firmware and boards",
    "8": "Search",
    "9": "ONNX files",
}
# What to do, where it does not depend on the case; the message itself has the rest.
REMEDIES: dict[str, str] = {
    "ON101": "`NeutronTargetSpec` and --target take the ids that the message lists.",
    "ON102": "`openneutron targets` lists the chips and why some are refused. NXP's SDK may take it: "
    "--converter eiq.",
    "ON103": "The message suggests the nearest name. docs/partitioner.md lists all options.",
    "ON104": "The message says what was expected.",
    "ON105": "Write aten::add, aten::add.Tensor or aten.add; `openneutron ops` lists the names.",
    "ON106": "The message lists all names. For own models use FILE.py:CALLABLE.",
    "ON107": "Import only one of openneutron and executorch.backends.nxp in a process.",
    "ON108": "The message names the key and lists those it knows; examples/ci/budget.toml is an example.",
    "ON130": "The message names the key and lists those it knows; docs/sweep.md has an example.",
    "ON113": "The message names the field; docs/targets.md has all of them.",
    "ON109": "Use neutron, cortex-m or npu+cpu (imxrt700 means the same).",
    "ON110": "The message says what is asked for twice; leave one of them out.",
    "ON111": "Leave the operator out of on_npu, or change the model so that the reason in the message goes.",
    "ON112": "The message lists the cores; the first of a chip is its own.",
    "ON201": "Replace the operator by one of `openneutron ops`, or leave it: the CPU computes it.",
    "ON202": "Quantize first: --quantize, calibration inputs for compile_model, or NeutronQuantizer. Next to "
    "an operator that is not in the table this is expected: it has no int8 neighbour on that side.",
    "ON203": "The reason names the limit and the value. `openneutron ops` lists the limits of an operator.",
    "ON204": "Remove the name from operators_not_to_delegate to have it delegated.",
    "ON205": "Export without dynamic_shapes, one program per shape.",
    "ON206": "Nothing, in general.",
    "ON207": "Use to_edge_transform_and_lower in place of to_edge and to_backend.",
    "ON208": "Build the new tensor with torch.cat, torch.where or an addition.",
    "ON209": "Give at least one sample; a hundred typical ones give good ranges.",
    "ON210": "Nothing, in general; channels-last inputs may need fewer of them.",
    "ON212": "Make torch.export.export(model, inputs) work first; PyTorch documents what it takes.",
    "ON213": "Return the tensors the model computes.",
    "ON301": "Report it with the model, if you can share it.",
    "ON302": "Download or convert the file again.",
    "ON303": "Convert the model with full int8 quantization and static shapes.",
    "ON304": "Use NeutronPartitioner to divide the program.",
    "ON305": "Write the model without the operator, or compile it instead of converting it.",
    "ON306": "Use LiteRT's default kernels, which compute it, or leave the softmax to the application.",
    "ON401": "Keep the operator on the CPU with operators_not_to_delegate.",
    "ON402": "Quantize the model fully to int8 with static shapes.",
    "ON403": "--fetch_constants_to_sram keeps weights in flash. Stripes of rows are taken already where "
    "they help; smaller inputs need less.",
    "ON410": "Use the open converter, or exclude the operators NXP's converter left over.",
    "ON411": "Install NXP's SDK from NXP, or use the open converter (the default).",
    "ON412": "Install a version of the SDK that fits; `openneutron doctor` shows what is there.",
    "ON413": "Use the open converter, or exclude operators until it passes; report it to NXP.",
    "ON414": "The message of NXP's converter is in the error.",
    "ON415": "Update the SDK, or choose a target it lists.",
    "ON416": "Try the open converter; a model that takes this long is rarely converted at all.",
    "ON420": "Copy the .pte again, or compile the model again.",
    "ON421": "Compile again with the version and for the target the message names.",
    "ON422": "Compile the model again with --dump_kernel_selection_code, or give its .pte to merge-kernels.",
    "ON423": "Compile all models of an application with one version of openneutron, for one target.",
    "ON430": "The message says how to call it; it comes before any import of eiq_neutron_sdk.",
    "ON501": "Compile the model again.",
    "ON502": "Compile the model again with this version.",
    "ON503": "The message says which call and why; compile the model again with this version.",
    "ON504": "Run `make setup`, or install the package again.",
    "ON510": "Check the path.",
    "ON511": "Give a .pte file (or a .tflite to `openneutron run`).",
    "ON512": "Copy the file again, or compile the model again.",
    "ON513": "Load the library that provides it, or compile so that it is not needed.",
    "ON514": "The message has the shape and type the program takes.",
    "ON515": "ExecuTorch's own messages are above the error.",
    "ON516": "Make both again: `openneutron compile --etrecord`, then `openneutron run --etdump`.",
    "ON517": "Report it with the model, if you can share it; operators_not_to_delegate finds the place.",
    "ON518": "Give a whole number from 1 on.",
    "ON601": "Choose another place with -o.",
    "ON602": "Check the path.",
    "ON603": "`openneutron compile --help` says what MODEL may be.",
    "ON604": "--debug shows the traceback of the function.",
    "ON605": "numpy.savez('samples.npz', inputs) with the samples along the first dimension is all it takes.",
    "ON606": "`openneutron eval MODEL --data labelled.npz`.",
    "ON607": "`openneutron explain` lists all codes.",
    "ON608": "Write it again with `openneutron report MODEL -o FILE.json`.",
    "ON520": "The message has the pip command.",
    "ON519": "`openneutron run FILE.pte --trust`, if you know where the file comes from.",
    "ON521": "Set a larger limit with --most-work (`most_work`), if you know where the file comes from.",
    "ON609": "Set TMPDIR to a folder with room: `TMPDIR=/var/tmp openneutron ...`.",
    "ON211": "Look at the sample the message names; often the preprocessing divides by zero.",
    "ON404": "Report it with the model, if you can share it; operators_not_to_delegate is a way around it.",
    "ON707": "`openneutron doctor` prints the two git commands that get the sources.",
    "ON708": "Check out the tag of the installed executorch; `openneutron doctor` names both.",
    "ON709": "Compile with a recipe that computes the operator otherwise, or leave it out of the model.",
    "ON710": "Compile with --core, or give firmware the --core it was compiled for.",
    "ON699": "Run it again with --debug.",
    "ON701": "Debian and Ubuntu: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm.",
    "ON702": "The compiler's own messages are in the error.",
    "ON703": "Compile with --fetch_constants_to_sram or a smaller --sram; `firmware --sram` sets the budget.",
    "ON704": "The message is the firmware's own; a kernel that is not linked is added by `merge-kernels`.",
    "ON705": "Report it with the model, if you can share it.",
    "ON706": "`openneutron compile` says why nodes stay on the CPU; firmware needs the open converter.",
    "ON720": "`ls /dev/tty*` or the device manager shows the ports. Close other programs that use it; on "
    "Linux join the group dialout.",
    "ON721": "pip install 'openneutron[board]'",
    "ON722": "Reset the board, check port and --baud, and give it longer with --timeout. docs/board.md.",
    "ON723": "Try again after a reset; if it stays so, the cable or the baud rate is wrong.",
    "ON724": "The message explains the code; `openneutron doctor FILE.pte` says what it would miss.",
    "ON725": "The message says what: another recipe, -r, another converter, or `firmware --serve`.",
    "ON726": "Report it with the program, the firmware and what was printed.",
    "ON801": "Wait for the other search, or name another folder with -o.",
    "ON802": "Install the same versions of openneutron everywhere, and give the scheduler's address.",
    "ON803": "The metric is called with a function that runs the program: `outputs = run(*inputs)`.",
    "ON804": "Compile the model by itself first: openneutron compile MODEL.",
    "ON805": "pip install 'openneutron[sweep]'",
    "ON901": "pip install 'openneutron[onnx]'",
    "ON902": "Export or download the file again.",
    "ON903": "Export the model again; `onnx.checker.check_model` says the same.",
    "ON904": "The message names the node, what it uses and the nearest form that is read.",
    "ON905": "--shape INPUT=SIZES settles the shape of an input; --fix INPUT=NUMBER makes one a constant.",
    "ON906": "Put the data file beside the model, under a name without a path.",
    "ON907": "Split the model, or choose smaller inputs.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="such as ON203; none: list all")
    parser.add_argument("--markdown", action="store_true", help="all codes as the troubleshooting page")


def execute(args: argparse.Namespace) -> None:
    """Print one code, or all."""
    if args.markdown:
        print(markdown(), end="")
    elif args.code is None:
        for code, info in sorted(CODES.items()):
            print(f"{code}  {info.title}")
    else:
        print(text(args.code))


def text(code: str) -> str:
    """A code in full."""
    code = code.upper()
    info = CODES.get(code)
    if info is None:
        fail("ON607", code, "there is no such code", nearest(code, CODES).split(" Known:")[0])
    parts = [f"{code}: {info.title}", "", textwrap.fill(info.explanation, 100)]
    if remedy := REMEDIES.get(code):
        parts += ["", textwrap.fill(f"What to do: {remedy}", 100)]
    return "\n".join(parts)


def markdown() -> str:
    """The troubleshooting page; `make check-generated` compares it with docs/troubleshooting.md."""
    lines = [
        "# Troubleshooting",
        "",
        "<!-- Generated by `openneutron explain --markdown`; do not edit. -->",
        "",
        "Every error and every reason for staying on the CPU has a code; `openneutron explain CODE` prints",
        "its entry. An error ends a command with exit code 1, or 2 if the command itself was wrong;",
        "`--debug` adds a traceback.",
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}"]
        for code, info in sorted(CODES.items()):
            if code[2] == group:
                lines += ["", f"### {code}: {info.title}", "", info.explanation]
                if remedy := REMEDIES.get(code):
                    lines += ["", f"**What to do:** {remedy}"]
    return "\n".join(lines) + "\n"
