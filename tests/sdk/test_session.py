"""`openneutron.sdk`: what ExecuTorch's NXP backend calls is answered, for one process and those it starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from openneutron.compiler.microcode.format import Kernel
from openneutron.converter.kernel_selection import kernel_selection_code
from openneutron.converter.neutron_graph import read_neutron_graph
from openneutron.diagnostics import OpenNeutronError
from openneutron.litert.build import Builder
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Quant
from openneutron.litert.reference import Reference
from openneutron.sdk import open_sdk
from openneutron.sdk.sums import sums_as_means

SDK = [sys.executable, "-m", "openneutron.sdk"]


@pytest.fixture
def session():
    with open_sdk(quiet=True) as folder:
        yield folder


@pytest.fixture
def litert():
    b = Builder()
    q = Quant.per_tensor(0.5, 3)
    x, y = (b.input(name, (1, 4), quant=q) for name in "xy")
    return write(b.graph([b.op(Builtin.ADD, [x, y], (1, 4), q, options={"fusedActivationFunction": 0})]))


def context(module, **options):
    made = module.CompilationContext()
    made.targetOpts = module.getNeutronTarget("imxrt700")
    for name, value in options.items():
        setattr(made.compilationOpts, name, value)
    return made


def run(*words, **kwargs):
    return subprocess.run([*SDK, *words], capture_output=True, text=True, timeout=120, **kwargs)


def test_it_is_there_inside_and_gone_outside(monkeypatch):
    monkeypatch.delitem(sys.modules, "eiq_neutron_sdk", raising=False)
    before = dict(os.environ), list(sys.path)
    with open_sdk(quiet=True) as folder:
        import eiq_neutron_sdk

        assert Path(eiq_neutron_sdk.__file__).is_relative_to(folder)
        assert "+openneutron" in importlib.metadata.version("eiq_neutron_sdk")
        assert importlib.metadata.version("eiq_nsys")
        with open_sdk() as again:
            assert again == folder
    assert (dict(os.environ), list(sys.path)) == before
    assert not folder.exists() and "eiq_neutron_sdk" not in sys.modules
    assert importlib.util.find_spec("eiq_neutron_sdk") is None


def test_a_session_that_has_ended_is_not_joined(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENNEUTRON_SDK", str(tmp_path / "gone"))
    with open_sdk(quiet=True) as folder:
        assert folder.is_dir() and importlib.util.find_spec("eiq_neutron_sdk") is not None


def test_threads_share_a_session_which_ends_with_the_last():
    entered, left = threading.Event(), threading.Event()

    def first():
        with open_sdk(quiet=True):
            entered.set()
            time.sleep(0.05)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10)
    with open_sdk(quiet=True) as folder:
        assert left.wait(10) and folder.exists()
        assert importlib.util.find_spec("eiq_neutron_sdk") is not None
    thread.join()
    assert not folder.exists() and "OPENNEUTRON_SDK" not in os.environ


def test_a_fork_that_leaves_the_session_does_not_end_it():
    code = (
        "import os, sys\n"
        "from openneutron.sdk import open_sdk\n"
        "with open_sdk(quiet=True) as folder:\n"
        "    child = os.fork()\n"
        "    if child == 0: sys.exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    print(folder.is_dir())\n"
        "print(folder.exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_the_programs_of_this_environment_are_found_though_it_is_not_active():
    code = "import eiq_neutron_sdk; print(eiq_neutron_sdk.__version__)"
    done = run("python", "-c", code, env={**os.environ, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0 and "+openneutron" in done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_session_that_is_stopped_leaves_nothing_behind(tmp_path, number):
    code = "import os, time; print(os.environ['OPENNEUTRON_SDK'], flush=True); time.sleep(60)"

    def listen():
        # A shell starts what it runs in the background deaf to Ctrl-C, nohup to a closed terminal; and so may
        # be this process.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with subprocess.Popen([*SDK, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True, preexec_fn=listen) as process:  # fmt: skip
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        if number == signal.SIGINT:  # as a terminal does
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) != 0
    assert not folder.exists()


def test_a_model_is_converted_and_options_are_known(session, litert):
    from eiq_neutron_sdk import neutron_converter as module

    made = context(module, minNumOpsPerGraph=1, excludeGraphPasses="MergeTranspose")
    parts = read_neutron_graph(bytes(module.convertModel(list(litert), made)), False, "test")
    assert [t.name for t in parts.inputs] == ["x", "y"] and parts.microcode
    with pytest.raises(AttributeError):
        made.compilationOpts.minNumOperators = 1


def test_sums_are_exact():
    b = Builder()
    x = b.input("x", (2, 3, 4), quant=Quant.per_tensor(0.1, 3))
    total = b.op(
        Builtin.SUM, [x, b.ints((1,))], (2, 4), Quant.per_tensor(0.3, -5), options={"keepDims": False}
    )
    graph = sums_as_means(read(write(b.graph([total]))))
    values = np.random.default_rng(0).integers(-128, 128, (2, 3, 4), np.int8)
    (found,) = Reference(graph).run([values])
    exact = (values.astype(int) - 3).sum(1) * 0.1 / 0.3 - 5
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= 0.5 + 1e-6


def test_targets(session):
    from eiq_neutron_sdk import neutron_library_utils as utils
    from eiq_neutron_sdk.neutron_converter import getNeutronTarget

    assert utils.isNeutronTarget("imxrt700") and not utils.isNeutronTarget("imxrt7000")
    assert {"imxrt700", "imx95"} <= {target.name for target in utils.getNeutronTargets()}
    npu = getNeutronTarget("imxrt700").npu
    assert (npu.subsystem, npu.hwVersion, npu.numMacs) == (False, 2, 8)
    assert getNeutronTarget("imx95").npu.subsystem
    with pytest.raises(OpenNeutronError, match="imxrt700"):
        getNeutronTarget("imxrt7000")


def test_profiling_prints_which_call_came_of_which_operator(session, litert, tmp_path):
    from eiq_neutron_sdk import neutron_converter as module

    printing = context(module, dumpAfterImport="console", dumpAfterGenerate="console")
    before = os.dup(1)
    with (tmp_path / "log").open("w") as file:  # ExecuTorch captures what a program in C++ prints
        os.dup2(file.fileno(), 1)
        try:
            module.convertModel(list(litert), printing)
        finally:
            os.dup2(before, 1)
            os.close(before)
    log = (tmp_path / "log").read_text()
    assert log.count("Graphs:") == 2 and "Type: ADD" in log
    assert 'Statistics for NeutronGraph "subgraph_001":' in log


def test_kernel_selections(session, litert, tmp_path, monkeypatch):
    import eiq_neutron_sdk
    from eiq_neutron_sdk import neutron_converter as module

    monkeypatch.chdir(tmp_path)
    module.convertModel(list(litert), context(module, dumpKernelSelectionCode=True))
    written = (tmp_path / "_kernel_selection.c").read_text()
    first = written.split("converter: ")[1].split("\n")[0]
    (tmp_path / "other.c").write_text(kernel_selection_code([Kernel.COPY], first))
    eiq_neutron_sdk.merge_kernel_selection_files(["_kernel_selection.c", "other.c"], "merged.c")
    assert "NEUTRON_KERNEL_COPY" in (tmp_path / "merged.c").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "eiq_neutron_sdk.neutron_library_utils.merge_kernel_selection_code",
         "-input-files", "other.c", "-output-file", "again.c"], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and (tmp_path / "again.c").exists(), done.stderr


def test_what_the_converter_refuses_is_told_at_the_end(tmp_path):
    (tmp_path / "program.py").write_text(
        "from eiq_neutron_sdk import neutron_converter as c\n"
        "context = c.CompilationContext()\n"
        "context.targetOpts = c.getNeutronTarget('imx95')\n"
        "c.convertModel(list(b'nothing'), context)\n"
    )
    done = run("program.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "\nopenneutron.sdk: error: ON102" in done.stderr


def test_the_command_says_so_once_and_hands_on(tmp_path):
    inside = "[sys.executable, '-m', 'openneutron.sdk', '-c', 'import eiq_neutron_sdk']"
    code = f"import sys, subprocess; print(sys.argv[1:]); subprocess.run({inside}); sys.exit(7)"
    done = run("-c", code, "--model", "x", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "['--model', 'x']\n")
    assert done.stderr.count("answered by OpenNeutron") == 1 and "not NXP silicon" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "COMMAND"),
        (("--help",), 0, ""),
        (("--verbose",), 1, "no option"),
        (("no-such",), 1, "cannot be run: No such file"),
        (("/",), 1, "cannot be run"),
    ],
)
def test_commands_that_are_none(words, code, says):
    done = run(*words)
    assert done.returncode == code and says in done.stderr and "Traceback" not in done.stderr


def test_it_must_come_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "eiq_neutron_sdk", sys)  # as if NXP's had been imported
    with pytest.raises(OpenNeutronError, match="ON430"), open_sdk():
        pass


def runner(session, *words):
    command = [str(session / "bin" / "nxp_executor_runner"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_runner_has_the_arguments_and_folders_of_executorchs(session, program, tmp_path):
    path, load = program
    rng = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    samples = {f"{i:04d}.bin": rng.standard_normal((1, 2, 4, 4)).astype(np.float32) for i in range(2)}
    for name, values in samples.items():
        values.tofile(data / name)
    rest = ("--firmware", "f", "--nsys", "n", "--nsys_config=c")
    done = runner(session, "--model", path, "--dataset", data, "--output", tmp_path / "out", *rest)
    assert done.returncode == 0, done.stderr
    for name, values in samples.items():
        (wanted,) = load.run([values])
        assert (np.fromfile(tmp_path / "out" / name / "0000.bin", np.float32) == wanted.reshape(-1)).all()
    assert len((tmp_path / "out" / "results.txt").read_text().splitlines()) == 2
    assert (tmp_path / "out" / "trace.etdump").stat().st_size > 0
    folders = tmp_path / "a", tmp_path / "b"
    for folder, values in zip(folders, samples.values(), strict=True):
        folder.mkdir()
        values.tofile(folder / "00.bin")
    done = runner(
        session, "--model", path, "--inputs", ",".join(map(str, folders)), "--output", tmp_path / "two"
    )
    assert done.returncode == 0 and {"a", "b"} <= {f.name for f in (tmp_path / "two").iterdir()}, done.stderr


def test_the_class_of_a_sample_is_written_for_outputs_of_every_type(session, tmp_path):
    import torch

    from openneutron import compile_model

    class Classifier(torch.nn.Module):
        def forward(self, x):
            return x.relu().argmax(1) * 3

    inputs = (torch.randn(2, 8),)
    compile_model(Classifier(), inputs, calibration=[inputs]).save(tmp_path / "classes.pte")
    (tmp_path / "data").mkdir()
    np.eye(8, dtype=np.float32)[[2, 5]].tofile(tmp_path / "data" / "a")
    words = ("--model", tmp_path / "classes.pte", "--dataset", tmp_path / "data", "--output", tmp_path)
    assert runner(session, *words).returncode == 0
    assert (tmp_path / "results.txt").read_text() == "a 1 15.000000 \n"
    done = runner(session, "--help")
    assert done.returncode == 0 and "--dataset FOLDER" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "--model"),
        (("--model", "x.pte"), "--dataset"),
        (("--modle", "x"), "no option --modle"),
        (("--model",), "needs a value"),
        (("--model", "x.pte", "--dataset", "."), "not a program"),
        (("--model", "{program}", "--dataset", "{empty}/none"), "not a folder"),
        (("--model", "{program}", "--inputs", "{program}"), "bytes, the input needs 128"),
        (("--model", "{program}", "--inputs", "{program},{program}"), "has 1 inputs"),
        (("--model", "{program}", "--inputs", "/dev/zero"), "has more than 128 bytes"),
        (("--model", "{program}", "--inputs", "{empty}/fifo"), "has 0 bytes"),
        (("--model", "{program}", "--inputs", ""), "no sample"),
        (("--model", "{program}", "--inputs", "{empty}/a,{empty}/../{empty.name}/a"), "two samples"),
    ],
)
def test_bad_arguments_of_the_runner_are_said(session, program, tmp_path, words, says):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a").mkdir()
    done = runner(session, *(w.format(program=program[0], empty=tmp_path) for w in words))
    assert done.returncode == 1 and says in done.stderr, done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A small program and the same loaded in this process."""
    import torch

    from openneutron import compile_model, load_program

    torch.manual_seed(0)
    inputs = (torch.randn(1, 2, 4, 4),)
    module = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.ReLU()).eval()
    path = tmp_path_factory.mktemp("program") / "small.pte"
    compile_model(module, inputs, calibration=[inputs]).save(path)
    return path, load_program(path)
