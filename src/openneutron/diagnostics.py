"""Diagnostics: what a user is told when something cannot be done, and why.

A `Diagnostic` ends the work (it is carried by `OpenNeutronError`). A `Reject` does not: it says why one
node stays on the CPU. Both have a code that `openneutron explain CODE` describes in full.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

# Remarks are logged above warnings: the command line mutes those, which libraries make about themselves.
REMARK = logging.WARNING + 5


def printable(text: str) -> str:
    """The text with `?` for what a terminal obeys instead of showing: escapes, controls, direction marks."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


@dataclass(frozen=True)
class Diagnostic:
    """One problem: where it is, what it is, and what to do about it."""

    code: str
    where: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.code}: {self.where}: {self.problem}" if self.where else f"{self.code}: {self.problem}"
        return printable(f"{text}\n  hint: {self.hint}" if self.hint else text)


@dataclass(frozen=True)
class Reject:
    """Why a node is not delegated: a sentence with the offending value in it."""

    code: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"


class OpenNeutronError(Exception):
    """An error with a diagnostic; every error a user can cause is one of these.

    It is a ValueError too if what was given is wrong, a RuntimeError if the work on it failed.
    """

    def __init__(self, diagnostic: Diagnostic):
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic

    def __reduce__(self) -> tuple[type[OpenNeutronError], tuple[Diagnostic]]:
        return type(self), (self.diagnostic,)


class WrongValueError(OpenNeutronError, ValueError):
    """What was given is wrong: an option, a target, a model, an input."""


class FailedError(OpenNeutronError, RuntimeError):
    """What was to be done failed: a file, a conversion, a run."""


_VALUES = ("ON1", "ON2", "ON514")  # how the codes of wrong values begin


def fail(code: str, where: str, problem: str, hint: str = "") -> NoReturn:
    """Raise an `OpenNeutronError`; the code must be a known one."""
    assert code in CODES, f"unknown diagnostic code {code}"
    kind = WrongValueError if code.startswith(_VALUES) else FailedError
    raise kind(Diagnostic(code, where, problem, hint))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that suggests the nearest known name and lists them all."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listing = "Known: " + ", ".join(names)
    return f"Did you mean '{close[0]}'? {listing}" if close else listing


@dataclass(frozen=True)
class CodeInfo:
    """The documentation of one diagnostic code."""

    title: str
    explanation: str


# 1xx target and options, 2xx support (rejects), 3xx LiteRT graph, 4xx converter and compiler,
# 5xx runtime, 6xx command line and files, 7xx firmware and boards, 9xx ONNX.
CODES: dict[str, CodeInfo] = {
    "ON101": CodeInfo("unknown target", "The target id is not one this version knows."),
    "ON102": CodeInfo(
        "target not supported",
        "The target is known, but nothing is published of its NPU that a compiler could be made from.",
    ),
    "ON103": CodeInfo("unknown option", "A compile-spec key or option field does not exist."),
    "ON104": CodeInfo("wrong option value", "The value of an option has the wrong type or is out of range."),
    "ON105": CodeInfo(
        "unknown operator name",
        "An operator named in operators_not_to_delegate exists neither in the program nor in the "
        "operator table nor in PyTorch. "
        "Names are matched exactly: 'aten::add' means add, never addmm.",
    ),
    "ON106": CodeInfo("unknown model", "The name is neither a model of the zoo nor one of its aliases."),
    "ON107": CodeInfo(
        "two backends of one name",
        "ExecuTorch finds backends by class name, and its wheel has a NeutronBackend of its own. With "
        "both imported in "
        "one process it may take either, so lowering is refused.",
    ),
    "ON108": CodeInfo(
        "wrong budget file",
        "The TOML file of `openneutron check` cannot be read, has a key or value it does not know, or names "
        "code to run without --trust. docs/ci-gate.md lists the keys.",
    ),
    "ON112": CodeInfo("unknown core", "The name is not a Cortex-M core that ExecuTorch's backend knows."),
    "ON113": CodeInfo("wrong chip file", "A file of --target-file says something that is no chip."),
    "ON109": CodeInfo("unknown recipe", "The name is not a recipe: neutron, cortex-m or npu+cpu."),
    "ON110": CodeInfo(
        "recipes conflict",
        "Two recipes, or two arguments of one, ask for different things: two training functions, calibration "
        "with training, an operator for both the NPU and the CPU, different targets or Edge configurations. "
        "One of them would have to be dropped silently, so nothing is built.",
    ),
    "ON111": CodeInfo(
        "operator demanded from the NPU",
        "The recipe was told that an operator must run on the NPU, and the NPU does not take it.",
    ),
    "ON130": CodeInfo(
        "wrong space of a search",
        "The TOML file of a sweep has an unknown key, dimension, figure or a value of the wrong kind, names "
        "code to run without --trust, or asks for all of too many points.",
    ),
    "ON201": CodeInfo(
        "operator not in the table", "No OpSpec describes this operator, so it stays on the CPU."
    ),
    "ON202": CodeInfo(
        "not quantized",
        "Neutron computes in int8. The node lacks a dequantize on an input or a quantize on its output, "
        "so it runs in float on the CPU.",
    ),
    "ON203": CodeInfo("constraint not met", "The operator is known, but this use of it exceeds a limit."),
    "ON204": CodeInfo(
        "excluded by the user",
        "The operator is named in operators_not_to_delegate, check_op_support refused it, or delegation is "
        "switched off altogether.",
    ),
    "ON205": CodeInfo(
        "dynamic shape",
        "The shape of a tensor is not known at compile time; Neutron programs are static. Export with "
        "fixed sizes.",
    ),
    "ON206": CodeInfo(
        "no work to delegate",
        "The partition would hold only operators that move no data and compute nothing; calling the NPU "
        "for it costs "
        "more than it saves. CustomDelegationOptions(allow_no_op_partitions=True) delegates it anyway.",
    ),
    "ON207": CodeInfo(
        "shared dequantize step",
        "A dequantize step feeds this node and another one. It can belong to only one partition, so each "
        "reader needs "
        "one of its own; to_edge_transform_and_lower with NeutronPartitioner sees to that.",
    ),
    "ON208": CodeInfo(
        "in-place change without another form",
        "Quantized values are copies, so that every change of a tensor in place (x[:, 0] = 1) is written as "
        "a new tensor. This one cannot be: the operator has no such form, or the tensor has no fixed size.",
    ),
    "ON209": CodeInfo(
        "nothing to calibrate with",
        "Post-training quantization reads the range of every tensor from sample inputs, and there were none.",
    ),
    "ON210": CodeInfo(
        "helps a CPU kernel",
        "The operator is not in the model: the CPU's kernels need it, to change a tensor's layout or to "
        "bring a constant into their form.",
    ),
    "ON211": CodeInfo(
        "calibration data not usable",
        "A sample has values that are NaN or infinite: the range of every tensor they reach would be lost. "
        "Or the model cannot be run on it: an index is out of range, say. The message names the sample, "
        "counted from zero.",
    ),
    "ON212": CodeInfo(
        "model cannot be exported",
        "torch.export, through which every model goes, could not follow this one: its forward raised an "
        "error, takes other inputs, or decides by the values of tensors what to compute.",
    ),
    "ON213": CodeInfo(
        "nothing that can be returned",
        "A program returns tensors, numbers and None, and at least one tensor.",
    ),
    "ON301": CodeInfo(
        "LiteRT graph invalid", "A LiteRT graph failed verification; this is a bug, please report it."
    ),
    "ON302": CodeInfo(
        "LiteRT file unreadable", "The bytes are not a LiteRT (.tflite) model, or they are damaged."
    ),
    "ON303": CodeInfo(
        "LiteRT model not supported", "The model uses an operator, type or feature that is not supported."
    ),
    "ON304": CodeInfo(
        "partition cannot be lowered",
        "A node was delegated that the operator table cannot lower. The partitioner never does this; the "
        "program was "
        "tagged by other means, or with another converter's limits.",
    ),
    "ON305": CodeInfo(
        "no LiteRT form",
        "`openneutron convert` writes the whole model as LiteRT operators, and this one has no form there. "
        "`openneutron compile` leaves such an operator to the CPU.",
    ),
    "ON306": CodeInfo(
        "LiteRT's reference softmax",
        "An int8 SOFTMAX over 512 or more elements that are nearly equal makes the sum of exponentials reach "
        "512, where LiteRT's reference kernel (BUILTIN_REF) asserts and ends its process. LiteRT's default "
        "kernels compute it, and so does the simulator: all shares are below half a step. A trained "
        "classifier is not affected in practice; an untrained one over 1000 classes is.",
    ),
    "ON401": CodeInfo(
        "no kernel for the operator", "The open converter has no kernel that computes this operator exactly."
    ),
    "ON402": CodeInfo(
        "graph cannot be compiled",
        "The open converter compiles static int8 graphs; a tensor or operator is outside of that.",
    ),
    "ON403": CodeInfo(
        "does not fit the SRAM",
        "Activations, prefetched weights and (unless they stay in flash) weights exceed the SRAM given. "
        "The message "
        "has the sum; fetch_constants_to_sram keeps weights in flash, sram_bytes is the limit.",
    ),
    "ON404": CodeInfo(
        "compiled program refused by its driver",
        "Every compiled program is handed to the driver, which checks it as it will on the device. It "
        "refused this one: a bug of the compiler, which should have left the operator to the CPU. Report it.",
    ),
    "ON410": CodeInfo(
        "converted model unreadable",
        "The LiteRT model a converter returned is not a single NeutronGraph operator with its parts.",
    ),
    "ON411": CodeInfo(
        "eiq_neutron_sdk is missing", "The eiq converter needs NXP's SDK, which is not installed."
    ),
    "ON412": CodeInfo(
        "eiq_neutron_sdk does not fit",
        "The installed SDK does not import or has another interface than needed.",
    ),
    "ON413": CodeInfo(
        "eiq_neutron_sdk crashed",
        "NXP's converter ended its process; it runs in a child, so nothing else is lost.",
    ),
    "ON414": CodeInfo("eiq_neutron_sdk refused", "NXP's converter raised an error for this model or option."),
    "ON415": CodeInfo(
        "target unknown to eiq_neutron_sdk", "The installed SDK does not know the target's name."
    ),
    "ON416": CodeInfo("eiq_neutron_sdk took too long", "NXP's converter was stopped at its time limit."),
    "ON420": CodeInfo("payload unreadable", "The bytes are not a whole delegate payload."),
    "ON421": CodeInfo(
        "payload does not fit",
        "The payload was made by another converter, for another microcode format or for another target.",
    ),
    "ON422": CodeInfo(
        "kernel-selection file refused",
        "The file is not one that OpenNeutron wrote, was edited by hand, or comes from another version. A "
        "table that does not name what it should would only fail on the board.",
    ),
    "ON423": CodeInfo(
        "kernel selections do not fit together",
        "The files were written by different converter versions or for different targets; the kernels of one "
        "firmware come from one version.",
    ),
    "ON430": CodeInfo(
        "openneutron.sdk cannot be used",
        "`python -m openneutron.sdk` answers as eiq_neutron_sdk for one process; it was called in a way or "
        "at a time at which it cannot.",
    ),
    "ON501": CodeInfo(
        "microcode unreadable", "The bytes are not an OpenNeutron microcode, or they are damaged."
    ),
    "ON502": CodeInfo(
        "microcode does not fit",
        "The microcode was made for another format version, target or set of kernels.",
    ),
    "ON503": CodeInfo(
        "the runtime refused to run", "The driver found the program or its memory unfit before running it."
    ),
    "ON510": CodeInfo("program file cannot be read", "There is no such file, or it may not be read."),
    "ON511": CodeInfo("not an ExecuTorch program", "The bytes do not begin as a .pte file does."),
    "ON512": CodeInfo(
        "program damaged",
        "The .pte is truncated or its bytes were changed: its seal, ExecuTorch's own verification or a "
        "rehearsal "
        "in a process of its own says so. Copy the file again or compile the model again.",
    ),
    "ON513": CodeInfo(
        "operator or backend missing",
        "The program calls an operator or a delegate that no library in this process provides.",
    ),
    "ON514": CodeInfo("inputs do not fit", "The number, shape or type of the inputs is not the program's."),
    "ON515": CodeInfo("the program failed", "ExecuTorch could not load or run the program."),
    "ON516": CodeInfo(
        "profile cannot be read",
        "An ETDump or ETRecord is damaged, or does not belong to the program it is read with.",
    ),
    "ON517": CodeInfo(
        "the program does not compute what the model computes",
        "After compiling, the program is run once on this machine and compared with the quantized model. It "
        "may differ by what rounding explains: as much as the model differs from itself when the result of "
        "every operator is off by one step. It differed by more: a wrong layout, scale or order, which is a "
        "defect of the compiler or of an operator's kernel. `--no-verify` (`verify=False`) skips the check.",
    ),
    "ON518": CodeInfo(
        "not a number of threads", "`threads` or OPENNEUTRON_THREADS is not a number of threads for a run."
    ),
    "ON519": CodeInfo(
        "the program does not end",
        "A program that this process did not compile is first run in a process of its own. There it did not "
        "end within a minute: it is far too large for this machine, or it is hostile and runs for ever.",
    ),
    "ON520": CodeInfo(
        "another ExecuTorch is installed",
        "Programs, the delegate's C++ and ExecuTorch's Python modules change from release to release; "
        "OpenNeutron is made for one of them. `openneutron doctor` lists what was seen with others.",
    ),
    "ON521": CodeInfo(
        "more work than allowed",
        "A few hundred bytes of microcode can ask for years of work. The runtime counts it before anything "
        "runs, in multiplications, and refuses more than the limit: a thousand times the work of a large "
        "network, or what `--most-work` (`most_work`) says. The file is hostile or damaged, or the limit is "
        "too low.",
    ),
    "ON601": CodeInfo(
        "file cannot be written", "The output folder does not exist, is full or is not writable."
    ),
    "ON602": CodeInfo(
        "model file cannot be read",
        "There is no such file, it may not be read, or it is no regular file: a device or a FIFO has no end.",
    ),
    "ON603": CodeInfo(
        "not a model",
        "The file is none of what MODEL may be: a .py file with a function, a .pt2 exported program, an "
        ".onnx or a .tflite model.",
    ),
    "ON604": CodeInfo(
        "the model's function failed",
        "The function of FILE.py:CALLABLE is missing, only imported into the file, raised an exception or "
        "returned something else than "
        "(module, example_inputs) or (module, example_inputs, calibration_inputs).",
    ),
    "ON605": CodeInfo(
        "samples cannot be read",
        "Calibration or input data are .npy or .npz arrays, or images, of the model's shape.",
    ),
    "ON606": CodeInfo(
        "no labelled data",
        "Accuracy and quantization-aware training need labels. Zoo classifiers bring theirs; for an own "
        "model use an "
        ".npz file with the arrays `inputs` and `labels`, or the Python API.",
    ),
    "ON607": CodeInfo("unknown diagnostic code", "The code is not one this version of openneutron knows."),
    "ON608": CodeInfo(
        "not a report",
        "The file is missing, damaged, of another schema version, or not what `openneutron report`, `compile "
        "--json` or `eval --json` writes.",
    ),
    "ON609": CodeInfo(
        "no room for temporary files",
        "A step needs a temporary file, and the folder TMPDIR names is full, read-only or not there.",
    ),
    "ON699": CodeInfo(
        "unexpected error",
        "Something failed that should not have, or failed in a library. Run the command with --debug and "
        "report what "
        "it prints.",
    ),
    "ON504": CodeInfo(
        "native library missing", "The C runtime is not built or not found beside the package."
    ),
    "ON701": CodeInfo(
        "cross tools missing",
        "Building firmware needs compilers and libraries for the Cortex-M, and running it an emulator; all "
        "are free.",
    ),
    "ON702": CodeInfo("firmware does not build", "The cross compiler or the linker reported an error."),
    "ON703": CodeInfo(
        "firmware does not fit",
        "The program exceeds the flash of the emulated board, or its pools exceed the SRAM given.",
    ),
    "ON704": CodeInfo(
        "firmware failed",
        "The firmware stopped with an error on the emulated Cortex-M: the driver or ExecuTorch refused the "
        "program, a pool was too small, the processor faulted, or the emulator was stopped at its limit.",
    ),
    "ON705": CodeInfo(
        "firmware and host differ",
        "An output of the emulated Cortex-M is not the host's: integers must be equal, floats within a "
        "millionth of the largest. This is a bug, or a float operator of two C libraries before a rounding.",
    ),
    "ON706": CodeInfo(
        "nothing to build firmware for",
        "The program has no delegate, and firmware without ExecuTorch's runtime runs delegates alone: all "
        "operators stayed on the CPU, or NXP's converter made the delegates.",
    ),
    "ON707": CodeInfo(
        "source missing",
        "Firmware that runs whole programs is built of the sources of ExecuTorch and, for the cortex_m "
        "operators, of CMSIS-NN. Neither is in their packages: clone them, or give tarballs.",
    ),
    "ON708": CodeInfo(
        "source of another version",
        "The source is not of the version of the installed executorch: the format of programs or the list of "
        "operators differs. A program written by the one may not run on the other.",
    ),
    "ON709": CodeInfo(
        "no kernel for the target",
        "The program calls an operator or a backend that firmware has no kernel for: neither ExecuTorch's "
        "portable, quantized and Cortex-M kernels have it, nor the source that was given.",
    ),
    "ON710": CodeInfo(
        "program for another core",
        "The program's cortex_m operators were compiled for another Cortex-M: the memory they were given is "
        "not what CMSIS-NN wants on this one.",
    ),
    "ON720": CodeInfo(
        "line to the board cannot be opened",
        "There is no such port, another program uses it, or the user may not open it. A board is named by "
        "its serial port (/dev/ttyACM0, COM5), by one of pyserial's URLs, by socket://host:port, or `qemu`.",
    ),
    "ON721": CodeInfo(
        "package pyserial missing",
        "Serial ports are opened with the PyPI package pyserial, an extra: pip install 'openneutron[board]'. "
        "Sockets and the emulator need nothing.",
    ),
    "ON722": CodeInfo(
        "board does not answer",
        "Nothing came in time, the line was closed, or the board never stops sending. It is another port, "
        "or the board runs other firmware, waits for the rest of an interrupted upload, or was unplugged.",
    ),
    "ON723": CodeInfo(
        "answer of the board unusable",
        "What came is no whole answer to what was asked: a wrong checksum, half a frame, text, an answer "
        "that describes another program, or two answers to one question. No result is taken from it.",
    ),
    "ON724": CodeInfo(
        "board refused",
        "The firmware on the board answered with an error. The message has its code, what the code means and "
        "the board's own words.",
    ),
    "ON725": CodeInfo(
        "program does not fit the board's firmware",
        "The firmware has less memory than the program needs, lacks an operator or a method, or runs the "
        "microcode of the other converter. This is known before anything is sent.",
    ),
    "ON726": CodeInfo(
        "board and host differ",
        "An output of the board is not what it should be: for programs of the open converter integers must "
        "be equal to the host's and floats within a millionth of the largest, for those of NXP's converter "
        "within what rounding explains.",
    ),
    "ON801": CodeInfo(
        "results of a search cannot be kept",
        "The folder cannot be written, another search is writing to it, it holds those of another space, or "
        "the journal of its trials is damaged. A last line that was not written to its end is no damage: "
        "it is dropped, and the trial run again.",
    ),
    "ON802": CodeInfo(
        "workers of a search",
        "No scheduler answers, a worker has other versions, or workers died at a trial three times.",
    ),
    "ON803": CodeInfo("the metric failed", "The user's own metric raised, or returned no finite number."),
    "ON804": CodeInfo("nothing could be measured", "Every variant that was tried failed."),
    "ON805": CodeInfo("a package is missing", "The search needs packages that are an extra of openneutron."),
    "ON901": CodeInfo(
        "package onnx missing",
        "ONNX files are read with the PyPI package onnx, an extra: pip install 'openneutron[onnx]'.",
    ),
    "ON902": CodeInfo(
        "not an ONNX model",
        "The bytes of the .onnx file are not an ONNX model or not all of one: truncated, a text file, a Git "
        "LFS pointer.",
    ),
    "ON903": CodeInfo(
        "ONNX model breaks the rules",
        "ONNX's own checker refuses the model, or what it declares disagrees with what is in it: a weight's "
        "shape with its bytes, a name with what makes it. The file is damaged or its exporter has a defect.",
    ),
    "ON904": CodeInfo(
        "ONNX operator not read",
        "The operator, its version, an attribute's value or a type is none that OpenNeutron reads. "
        "docs/onnx-operators.md lists the operators.",
    ),
    "ON905": CodeInfo(
        "ONNX shape not settled",
        "Programs are static. A dimension of an input is open (--shape settles it), or a shape, an axis or a "
        "condition is computed from the values of the inputs.",
    ),
    "ON906": CodeInfo(
        "ONNX external data refused",
        "The data file of a weight is missing or lies outside of the model's own folder, from which alone it "
        "is read.",
    ),
    "ON907": CodeInfo(
        "ONNX model too large",
        "The model has more operators, or a tensor with more bytes, than any program for this chip could "
        "have.",
    ),
}
