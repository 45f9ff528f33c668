"""The `eiq` converter: NXP's proprietary `eiq_neutron_sdk`, run in a child process of its own.

The SDK is never imported here: it may kill its process on bad input, and most users do not have it. The child
(`eiq_worker.py`) gets the model in a temporary folder and leaves its answer there; whatever happens to it
becomes a diagnostic that says what happened and what to try.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from openneutron.converter import eiq_worker
from openneutron.converter.eiq_versions import DISTRIBUTION, fit, is_stand_in
from openneutron.converter.neutron_graph import read_neutron_graph
from openneutron.converter.protocol import ConvertedModel
from openneutron.converter.stock import MAGIC, PLAIN, PROFILING, read_words, word_count
from openneutron.diagnostics import Reject, fail
from openneutron.files import scratch_folder
from openneutron.litert.ir import Graph
from openneutron.options import CompileOptions
from openneutron.targets.chip import Target

_WHERE = "converter eiq"
_OPEN_HINT = "The open converter (--converter open) needs no SDK; its programs run on OpenNeutron's firmware."
# The worker as a script, but without its folder in sys.path: that would shadow modules the SDK imports.
_RUN_WORKER = (
    "import runpy, sys; del sys.argv[0]; sys.path[:] = filter(None, sys.path); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
_CODES = {"missing": "ON411", "version": "ON412", "refused": "ON414", "target": "ON415"}


@dataclass(frozen=True)
class EiqConverter:
    """NXP's converter, with a limit on how long one model may take."""

    timeout_seconds: float = 600.0
    name: str = "eiq"

    def refuses(self, graph: Graph) -> Reject | None:
        """The published limits are in the operator table; NXP's converter is not asked for each operator."""
        del graph
        return None

    def convert(self, litert: bytes, options: CompileOptions, target: Target) -> ConvertedModel:
        """Convert with the SDK; its payload runs on NXP's stock runtime."""
        with scratch_folder() as name:
            folder = Path(name)
            (folder / eiq_worker.MODEL).write_bytes(litert)
            (folder / eiq_worker.REQUEST).write_text(json.dumps(_request(options, target)))
            answer = self._run(folder)
            result = (folder / eiq_worker.RESULT).read_bytes()
            selection = folder / eiq_worker.KERNEL_SELECTION
            code = (
                selection.read_text() if options.dump_kernel_selection_code and selection.exists() else None
            )
        _check_version(answer["version"])
        if options.dump_kernel_selection_code and code is None:
            fail(
                "ON412",
                _WHERE,
                f"eiq_neutron_sdk {answer['version']} wrote no {eiq_worker.KERNEL_SELECTION}",
                "Leave out --dump_kernel_selection_code, or install a version that supports it.",
            )
        return _converted(result, options.use_profiling, answer["version"], code)

    def _run(self, folder: Path) -> dict[str, Any]:
        """Run the worker in `folder`; its answer, or the diagnostic of its failure."""
        command = [sys.executable, "-c", _RUN_WORKER, str(Path(eiq_worker.__file__).resolve()), str(folder)]
        log = folder / "worker.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(self.timeout_seconds)
            except subprocess.TimeoutExpired:
                # The session is the child's own, so that helpers it may have started end with it.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                fail(
                    "ON416",
                    _WHERE,
                    f"eiq_neutron_sdk did not finish within {self.timeout_seconds:g} s",
                    f"Try a smaller part of the model, or report it to NXP. {_OPEN_HINT}",
                )
        answer_file = folder / eiq_worker.ANSWER
        # A crash after the answer was written (in the SDK's clean-up) still is a crash: trust nothing.
        if code != 0 or not answer_file.exists():
            _crashed(code, log)
        answer: dict[str, Any] = json.loads(answer_file.read_text())
        if answer["status"] != "ok":
            fail(
                _CODES[answer["status"]], _WHERE, answer["message"], f"{answer['hint']} {_OPEN_HINT}".strip()
            )
        return answer


def _check_version(version: str) -> None:
    """The stand-in is refused; a version that ExecuTorch does not ask for is said."""
    if is_stand_in(version):
        fail(
            "ON412",
            _WHERE,
            f"{DISTRIBUTION} {version} is OpenNeutron's own stand-in: NXP silicon does not run its microcode",
            f"Run it outside of `python -m openneutron.sdk`. {_OPEN_HINT}",
        )
    if problem := fit(version):
        warnings.warn(f"{DISTRIBUTION} {version}: {problem}", stacklevel=2)


def _request(options: CompileOptions, target: Target) -> dict[str, Any]:
    return {
        "target": target.name,
        "fetch_constants_to_sram": options.fetch_constants_to_sram,
        "dump_kernel_selection_code": options.dump_kernel_selection_code,
        "use_profiling": options.use_profiling,
        "extra_flags": options.extra_flags or "",
    }


def _crashed(code: int, log: Path) -> NoReturn:
    how = f"ended with exit code {code}"
    if code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-5:]
    said = " Its last words: " + " | ".join(last) if last else " It printed nothing."
    fail(
        "ON413",
        _WHERE,
        f"eiq_neutron_sdk {how}.{said}",
        "It does so on models it cannot handle: exclude operators with operators_not_to_delegate until it "
        f"passes, and report the model to NXP. {_OPEN_HINT}",
    )


def _converted(result: bytes, profiling: bool, version: str, selection: str | None) -> ConvertedModel:
    parts = read_neutron_graph(result, profiling, "the model eiq_neutron_sdk returned")
    form = PROFILING if profiling else PLAIN
    if len(parts.microcode) < 4 * word_count(form):
        fail("ON410", _WHERE, f"the microcode has {len(parts.microcode)} bytes, too few for its header")
    words = read_words(parts.microcode, form)
    if words.magic != MAGIC:
        fail(
            "ON412",
            _WHERE,
            f"the microcode has magic {words.magic:#010x}, NXP's runtime expects {MAGIC:#010x}",
            f"eiq_neutron_sdk {version} writes another format; use a version that fits the runtime.",
        )
    return ConvertedModel(
        converter=f"eiq_neutron_sdk {version}",
        microcode=parts.microcode,
        weights=parts.weights,
        kernels=parts.kernels,
        scratch_bytes=parts.scratch_bytes,
        prefetch_bytes=words.prefetch_bytes,
        kernel_selection_code=selection,
        neutron_litert=result,
        profile_bytes=parts.profile_bytes,
        debug_bytes=parts.debug_bytes,
    )
