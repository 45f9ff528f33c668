"""The child process of the `eiq` converter: the only place that imports NXP's SDK.

Run as a script: `python eiq_worker.py FOLDER`. Reads the model and the request from the folder, writes the
result and an answer to it. It imports nothing of OpenNeutron, so that it starts fast and a crash of the SDK
takes nothing else down.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

MODEL, REQUEST, RESULT, ANSWER = "model.tflite", "request.json", "result.tflite", "answer.json"
KERNEL_SELECTION = "_kernel_selection.c"  # the SDK writes it into the working directory, under this name

# These two passes of the SDK undo what the front end's layout inference has already decided.
_EXCLUDED_PASSES = "HoistSliceAboveTranspose,MergeTranspose"


class Failure(Exception):
    """A failure the parent turns into a diagnostic: its kind, a sentence, and what to do."""

    def __init__(self, status: str, message: str, hint: str = ""):
        super().__init__(message)
        self.answer = {"status": status, "message": message, "hint": hint}


def main(folder: Path) -> None:
    """Convert the model in `folder`."""
    try:
        version = convert(folder, json.loads((folder / REQUEST).read_text()))
        answer = {"status": "ok", "version": version}
    except Failure as failure:
        answer = failure.answer
    (folder / ANSWER).write_text(json.dumps(answer))


def convert(folder: Path, request: dict[str, Any]) -> str:
    """Run the SDK on the model; the SDK's version."""
    converter, utils, version = load_sdk()
    try:
        is_target = utils.isNeutronTarget(request["target"])
        targets = "" if is_target else ", ".join(map(str, utils.getNeutronTargets()))
        context = converter.CompilationContext()
        if is_target:
            context.targetOpts = converter.getNeutronTarget(request["target"])
        options = context.compilationOpts
        options.minNumOpsPerGraph = 1
        options.excludeGraphPasses = _EXCLUDED_PASSES
        options.fetchConstantsToSRAM = request["fetch_constants_to_sram"]
        options.dumpKernelSelectionCode = request["dump_kernel_selection_code"]
        options.useProfiling = request["use_profiling"]
        set_flags(options, request["extra_flags"])
        run = converter.convertModel
    except AttributeError as error:
        raise Failure(
            "version",
            f"eiq_neutron_sdk {version} has not the interface needed: {error}",
            "Install the version that NXP released for your board's runtime.",
        ) from error
    if not is_target:
        raise Failure(
            "target",
            f"eiq_neutron_sdk {version} does not know target '{request['target']}'",
            f"It knows: {targets}.",
        )
    try:
        result = bytes(run(list((folder / MODEL).read_bytes()), context))
    except Exception as error:
        raise Failure(
            "refused",
            f"eiq_neutron_sdk {version} refused the model: {type(error).__name__}: {error}",
            "Exclude the operator it names with operators_not_to_delegate.",
        ) from error
    if not result:
        raise Failure("refused", f"eiq_neutron_sdk {version} returned an empty model")
    (folder / RESULT).write_bytes(result)
    return version


def load_sdk() -> tuple[Any, Any, str]:
    """The SDK's two modules and its version."""
    try:
        converter = importlib.import_module("eiq_neutron_sdk.neutron_converter")
        utils = importlib.import_module("eiq_neutron_sdk.neutron_library_utils")
    except ModuleNotFoundError as error:
        if error.name == "eiq_neutron_sdk":
            raise Failure(
                "missing",
                "eiq_neutron_sdk is not installed in this Python environment",
                "Install it from NXP's package index, as the eIQ documentation says.",
            ) from error
        raise Failure("version", f"eiq_neutron_sdk does not import: {error}", "Install it again.") from error
    except ImportError as error:
        raise Failure(
            "version",
            f"eiq_neutron_sdk does not import: {error}",
            "It is built for one Python version and platform; install the build for yours.",
        ) from error
    try:
        version = importlib.metadata.version("eiq_neutron_sdk")
    except importlib.metadata.PackageNotFoundError:
        version = str(getattr(sys.modules["eiq_neutron_sdk"], "__version__", "(unknown version)"))
    return converter, utils, version


def set_flags(options: Any, flags: str) -> None:
    """`extra_flags`: words `name=value` that set fields of the SDK's compilation options."""
    for flag in flags.split():
        name, equals, text = flag.lstrip("-").partition("=")
        value: Any = True if not equals else {"true": True, "false": False}.get(text.lower(), text)
        if isinstance(value, str) and value.lstrip("-").isdigit():
            value = int(value)
        if not hasattr(options, name):
            raise Failure(
                "refused",
                f"extra_flags: the SDK's compilation options have no field '{name}'",
                "Write flags as name=value with the SDK's field names.",
            )
        setattr(options, name, value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
