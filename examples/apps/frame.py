"""What every example does the same way: compile, run on simulator and emulated chip, keep figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import torch
from PIL import Image

from openneutron import compile_model
from openneutron.diagnostics import OpenNeutronError
from openneutron.package.program import CompiledProgram
from openneutron.run.program import load_program

ROOT = Path(__file__).resolve().parents[2]
APPS, PICTURES = ROOT / "examples/apps", ROOT / "docs/images/apps"
LIB = APPS / "lib"
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Cost:
    """What one program costs, as its compile says."""

    name: str
    ms: float  # estimated, of one inference
    sram: int  # inputs, outputs, activations and what it remembers
    flash: int  # of the program
    npu_share: float  # of the estimated cycles
    cpu: tuple[str, ...]  # operators on the CPU, by what computes them


@dataclass(frozen=True)
class Figures:
    """What an example found, as its page and the gallery show it."""

    task: str  # what the figure is, with what it was taken on
    float: float
    int8: float  # on the simulator
    chip: float | str | None  # under QEMU, of the same samples, or of how many; None: it could not be run
    chip_note: str  # what the application on the chip was seen to do
    costs: list[Cost]
    more: dict[str, str] = field(default_factory=dict)  # by name
    unit: str = ""
    behind: str = ""  # why int8 is more than a point behind float, if it is
    minutes: float | None = None  # of one core, from the start to the picture


PROGRAMS = {"espeak-ng": "apt install espeak-ng"}  # that some examples need beside packages


def missing(needs: Sequence[str]) -> str:
    """What to do if packages or programs that an example needs are not installed; else nothing."""
    gone = [name for name in needs if name not in PROGRAMS and find_spec(name) is None]
    said = [f"it needs {', '.join(gone)}: pip install 'openneutron[apps]', or make setup in a clone"] * bool(
        gone
    )
    said += [f"it needs {n}: {PROGRAMS[n]}" for n in needs if n in PROGRAMS and which(n) is None]
    return "; ".join(said)


def compiled(name: str, module: torch.nn.Module, calibration: Sequence[Any], **more: Any) -> CompiledProgram:
    """Quantize and compile with samples or sequences; `name` is for the messages, `more` compile_model's."""
    print(f"{name}: compiling for i.MX RT700, calibrated with {len(calibration)} samples", flush=True)
    first = calibration[0][0] if isinstance(calibration[0], list) else calibration[0]
    return compile_model(module, first, calibration=calibration, **more)


def cost_of(name: str, program: CompiledProgram) -> Cost:
    """What a program costs."""
    said = program.summary()
    total = said["cycles_estimated"]
    ms = 1e3 * total / program.target.frequency_hz
    sram = said["reserve_bytes"] + said["state_bytes"]
    return Cost(name, ms, sram, said["program_bytes"], said["cycles_npu"] / total, tuple(said["cpu_kernels"]))


def runner(program: CompiledProgram) -> Callable[..., Arrays]:
    """The program on the simulator: arrays in, arrays out."""
    loaded = load_program(program.pte)
    return lambda *arrays: loaded.run([np.ascontiguousarray(a) for a in arrays])


def on_chip(
    programs: Mapping[str, bytes], files: Sequence[Path], given: Mapping[str, bytes], folder: Path
) -> tuple[str, dict[str, bytes], dict[str, Any]] | None:
    """Build the application, run it under QEMU: what it printed, the files it wrote, what it took.

    None, with the reason printed, if the cross compiler, QEMU or the sources of ExecuTorch are not there.
    """
    from openneutron.firmware.application import build_application, run_application
    from openneutron.firmware.check import check_whole
    from openneutron.firmware.cores import find_firmware_core
    from openneutron.firmware.whole import read_several

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, pte in programs.items():
        paths.append(folder / f"{name}.pte")
        paths[-1].write_bytes(pte)
    program = read_several(paths, named=True)
    core = find_firmware_core(target=program.target)
    try:
        sources = check_whole(program, core)
    except OpenNeutronError as error:
        if error.diagnostic.code not in ("ON701", "ON707", "ON708"):
            raise
        print(f"not run under QEMU: {error}")
        return None
    print("building the application for a Cortex-M33, and running it under QEMU", flush=True)
    firmware = build_application(program, files, folder, sources, core=core)
    before = {file.name for file in folder.iterdir()}
    for name, data in given.items():
        (folder / name).write_bytes(data)
    run = run_application(firmware)
    wrote = {
        f.name: f.read_bytes() for f in folder.glob("*.out") if f.name not in before or f.suffix == ".out"
    }
    own = sum(part.data + part.bss for part in firmware.size.parts)
    took = {"runs": dict(run.runs), "instructions": dict(run.instructions), "own": run.own_instructions,
            "sram": run.pools.total + own, "text": firmware.size.text}  # fmt: skip
    return run.text, wrote, took


def chip_note(took: Mapping[str, Any]) -> str:
    """The sizes of an application and what it took, as a sentence."""
    runs = sum(took["runs"].values())
    own = took["own"] / (took["own"] + sum(took["instructions"].values()))
    return (f"{took['text'] / 1024:.0f} KiB of code, {took['sram'] / 1024:.0f} KiB of SRAM in all; {runs} "
            f"runs, of all instructions {own:.0%} are the application's own")  # fmt: skip


def save_picture(picture: Image.Image, path: Path, colours: int = 128) -> None:
    """A small PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"picture: {path}")


def save_figures(name: str, figures: Figures, folder: Path) -> None:
    """Beside the example, for its page and the gallery."""
    (folder / "figures.json").write_text(json.dumps(asdict(figures), indent=2) + "\n")


def read_figures(path: Path) -> Figures:
    """What `save_figures` wrote."""
    data = json.loads(path.read_text())
    costs = [Cost(**{**cost, "cpu": tuple(cost["cpu"])}) for cost in data.pop("costs")]
    return Figures(**data, costs=costs)
