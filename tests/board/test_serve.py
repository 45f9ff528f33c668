"""OpenNeutron's firmware on an emulated board: program after program over one line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from openneutron.board.frames import Command
from openneutron.board.session import connect
from openneutron.cli import main
from openneutron.commands.devices.board import random_inputs
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.cores import CORES
from openneutron.firmware.operators import PRIM, find_kernels, wheel_operators
from openneutron.firmware.serve import build_server, default_operators, emulated_line
from openneutron.firmware.whole import WholeProgram
from openneutron.options import CompileOptions
from openneutron.package.pte import inspect_program
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from tests.board.fake import crc16, frame
from tests.board.programs import Layer, portable
from tests.firmware.whole import ON_CPU, compile_network, compiled, samples
from tests.recipes.networks import NETWORKS

pytestmark = pytest.mark.firmware
slow = pytest.mark.slow  # images are built and run under QEMU
WHICH = (("middle", "neutron"), ("argmax_head", "neutron"), ("dscnn", "neutron"))
# A plain network, residuals, attention, depthwise layers, dense ones on a batch, convolutions over time, a
# recurrent one, integers in, integers and two outputs out, and layers on the CPU in int8.
KINDS = (
    *((name, "neutron", True) for name in ("cifarnet", "resnet8", "tiny_vit")),  # int8 in and out
    *((name, "neutron", False) for name in ("dscnn", "autoencoder", "tcn", "gru")),
    *((name, "neutron", False) for name in ("embedding_start", "argmax_head")),
    ("middle", "imxrt700", False),
)


class TwoIn(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Conv2d(2, 4, 3), torch.nn.Linear(5, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(self.a(x)) + self.b(y)[:, :, None, None], self.b(y)


def two_in() -> bytes:
    inputs = (torch.randn(1, 2, 5, 5), torch.randn(1, 5))
    return compile_model(TwoIn().eval(), inputs, calibration=[inputs]).pte


@pytest.fixture(scope="module")
def programs(sources) -> dict[str, WholeProgram]:
    return {name: compiled(name, recipe) for name, recipe in WHICH}


@pytest.fixture(scope="module")
def sources():
    from tests.firmware.whole import find_test_sources

    return find_test_sources()


@pytest.fixture(scope="module")
def image(programs):
    operators = {op for p in programs.values() for op in p.operators}
    more = inspect_program(two_in()).methods["forward"].operators
    return build_server(CORES["cortex-m33"], sorted(operators | set(more)))


@pytest.fixture
def board(image):
    with (
        emulated_line(CORES["cortex-m33"], image) as port,
        connect(port, "qemu", baud=10**6, timeout=120) as board,
    ):
        yield board


def run(board, data, inputs, name="program.pte"):
    """Upload, run; the outputs must be the host's."""
    info = inspect_program(data)
    method = next(iter(info.methods.values()))
    board.load(data, info, method, name, lambda part: None)
    found = board.run(method, inputs, lambda part: None)
    host = load_program(data)
    for arrays, outputs in zip(inputs, found.outputs, strict=True):
        for one, two in zip(outputs, host.run(arrays, method.name), strict=True):
            if two.dtype.kind == "f":
                np.testing.assert_allclose(one, two, rtol=0, atol=1e-6 * np.abs(two).max())
            else:
                np.testing.assert_array_equal(one, two)
    assert all(us > 0 for us in found.microseconds)
    return found


def bad_programs(data, generator):
    """Nothing, no program, half of one, and one with forty bits changed."""
    broken = bytearray(data)
    for _ in range(40):
        broken[generator.randrange(len(broken))] ^= 1 << generator.randrange(8)
    return b"", b"not a program at all" * 9, data[: len(data) // 2], bytes(broken)


def try_broken(board, data, raw):
    """Upload and run what is damaged: the code of what came of it, or nothing if it ran."""
    try:
        board._client.load_model(data)
        board._client.load_input(raw)
        board._client.run(1 << 20)
    except OpenNeutronError as error:
        return error.diagnostic.code
    return ""


def damaged(data, generator):
    """Some bytes of a program changed, more often at its beginning."""
    broken = bytearray(data)
    for _ in range(generator.choice([1, 2, 5, 20])):
        room = min(len(broken), generator.choice([400, 3000, len(broken)]))
        broken[generator.randrange(room)] = generator.randrange(256)
    return bytes(broken)


@slow
def test_a_hundred_damaged_programs_do_not_stop_the_next(board, programs):
    """Some make the processor fault or ExecuTorch give up: the board starts again and says so."""
    generator, program = random.Random(1), programs["middle"]
    spec = program.info.methods["forward"].inputs[0]
    codes = [
        try_broken(board, damaged(program.data, generator), bytes(4 * int(np.prod(spec.shape))))
        for _ in range(100)
    ]
    assert set(codes) <= {"", "ON724"} and codes.count("ON724") > 50
    run(board, program.data, samples(NETWORKS["middle"], 2)["forward"])


def test_one_image_many_programs_and_broken_ones_between(board, programs):
    generator = random.Random(0)
    for name, program in programs.items():
        for bad in bad_programs(program.data, generator):
            assert try_broken(board, bad, bytes(4)) == "ON724"  # a refusal, not silence
        run(board, program.data, samples(NETWORKS[name], 3)["forward"], name)


def test_an_operator_it_has_not(board):
    data = portable(Layer(), torch.ones(1, 6))
    with pytest.raises(OpenNeutronError, match=r"ON725.*no kernel for aten::addmm.out"):
        run(board, data, [[np.ones((1, 6), np.float32)]])
    # A client that does not ask hears it from ExecuTorch.
    with pytest.raises(OpenNeutronError, match=r"ON724.*code 14") as caught:
        board._client.load_model(data)
    assert "issing operator" in str(caught.value)


def test_several_inputs_steps_and_state(board):
    data = two_in()
    info = inspect_program(data)
    inputs = [[np.random.default_rng(n).standard_normal(s.shape).astype(np.float32)
               for s in info.methods["forward"].inputs] for n in range(2)]  # fmt: skip
    run(board, data, inputs)
    text = board.steps(info.methods["forward"], inputs[0])
    assert "step " in text and "kernel " in text
    board.reset_state()
    assert board._client.text(Command.METHODS).split() == ["forward"]
    with pytest.raises(OpenNeutronError, match="an input is not loaded"):
        board._client.run(1000)
    with pytest.raises(OpenNeutronError, match="code 05"):
        board._client.load_input(bytes(3), 1)
    with pytest.raises(OpenNeutronError, match="there is no such input"):
        board._client.load_input(bytes(3), 7)


def test_a_client_of_others(image, programs):
    """Only what the protocol's description has, with the bytes of the other side's own making."""
    program = programs["dscnn"]
    (inputs,) = samples(NETWORKS["dscnn"], 1)["forward"]
    spec = program.info.methods["forward"].inputs[0]
    raw = np.ascontiguousarray(inputs[0].transpose(spec.dim_order)).tobytes()
    with emulated_line(CORES["cortex-m33"], image) as port:

        def ask(command, payload=b"", damage=0):
            question = bytearray(frame(command, payload))
            question[-1] ^= damage
            port.write(bytes(question), 60)
            heard = b""
            while len(heard) < 9 or len(heard) < 9 + int.from_bytes(heard[3:7], "little"):
                heard += port.read(60)
            assert heard[:2] == b"\x55\xaa" and crc16(heard[2:-2]) == int.from_bytes(heard[-2:], "little")
            return heard[2], heard[7:-2]

        assert ask(4) == (0x82, b"")
        assert ask(3)[1][0] == ask(2, b"x")[1][0] == 8
        assert ask(0x44) == (0xC0, b"\x02unknown command")
        assert ask(1, program.data, damage=1)[1][0] == 1
        assert ask(1, program.data) == (0x81, b"")
        assert ask(2, raw[:-1])[1][0] == 5
        port.write(b"noise \x55 \x55\x55 noise", 60)
        assert ask(2, raw) == (0x81, b"")
        status, result = ask(3)
        assert status == 0x83
        want = load_program(program.data).run(inputs)[0]
        np.testing.assert_array_equal(np.frombuffer(result[-want.nbytes :], want.dtype), want.ravel())
        assert ask(3)[1][0] == 8  # an input must be loaded again


def test_the_command(programs, tmp_path, capsys):
    path = tmp_path / "dscnn.pte"
    path.write_bytes(programs["dscnn"].data)
    assert main(["run", str(path), "--board", "qemu", "--samples", "2", "--json", "--timeout", "60"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["values"] == data["equal"] > 0 and data["time"]["unit"] == "instructions"
    assert main(["firmware", "--serve", str(path), "-o", str(tmp_path / "out"), "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert (tmp_path / "out/serve-cortex-m33.elf").exists() and built["cpu_operators"]


def test_every_operator_has_its_files(sources):
    """What several kernels share is found too; kernels that need an operating system are left out."""
    kernels = find_kernels(sorted(wheel_operators()), sources)
    files = {file.name for _, file in kernels.files}
    assert {"embeddingxb.cpp", "op_embedding2b.cpp", "op_embedding4b.cpp"} <= files
    assert not any("random_device" in file.read_text() for _, file in kernels.files)
    assert {op for op in default_operators() if not op.startswith(PRIM)} <= set(kernels.operators)
    with pytest.raises(OpenNeutronError, match=r"ON709.*aten::rand.out"):
        build_server(operators=["aten::rand.out"])


def test_a_layer_that_stays_on_the_cpu(sources):
    """Its bias has zero points of 64 bits: of narrower ones the kernel reads what lies behind them."""
    torch.manual_seed(0)
    inputs = [(torch.randn(1, 6),) for _ in range(8)]
    options = CompileOptions(operators_not_to_delegate=("aten::linear",))
    data = compile_model(Layer().eval(), inputs[0], calibration=inputs, options=options).pte
    operators = inspect_program(data).methods["forward"].operators
    assert "quantized_decomposed::dequantize_per_channel.out" in operators
    image = build_server(CORES["cortex-m33"], operators)
    with (
        emulated_line(CORES["cortex-m33"], image) as port,
        connect(port, "qemu", baud=10**6, timeout=120) as board,
    ):
        run(board, data, [[x.numpy()] for (x,) in inputs])


EMULATOR = """
import sys
from openneutron.commands.devices import firmware_serve
from openneutron.firmware import serve
program = "import os, time; print(os.getpid(), 'redirected to /dev/x', flush=True); time.sleep(100)"
serve.emulator_command = lambda *_: [sys.executable, "-c", program]
serve.build_server = lambda *_, **__: "image"
firmware_serve._PTY = __import__("re").compile(r"(\\d+) redirected")
sys.argv = ["openneutron", "firmware", "--serve", "--run"]
__import__("openneutron.__main__").__main__.run()
"""


@slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_emulator_ends_with_the_command(how):
    # A shell that runs these tests in the background has SIGINT ignored, and so would the process.
    words = [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler){EMULATOR}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = iter(process.stdout.readline, "")
    emulator = int(next(line for line in lines if line.startswith("board:")).split()[1])
    process.send_signal(how)
    assert process.wait(60) != 0
    assert_gone(emulator)


def assert_gone(pid):
    """The process ends soon; nobody may have asked how."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def children(pid):
    """The processes that a process has started, by their names."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = place.read_text().rpartition(")")
            if int(rest.split()[1]) == pid:
                found[head.partition("(")[2]] = int(place.parent.name)
    return found


@slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_emulator(programs, tmp_path, how):
    """Ended while the board runs inputs; but for SIGKILL, no temporary folder stays either."""
    (tmp_path / "p.pte").write_bytes(programs["dscnn"].data)
    (tmp_path / "tmp").mkdir()
    code = (
        "import signal; signal.signal(2, signal.default_int_handler)\n"
        "import openneutron.__main__ as m; m.run()"
    )
    words = ["run", str(tmp_path / "p.pte"), "--board", "qemu", "--samples", "100000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "OPENNEUTRON_QUIET": ""}
    process = subprocess.Popen([sys.executable, "-c", code, *words], env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        said = ""
        for line in process.stderr:
            said += line
            if "Running" in line:
                break
        found = children(process.pid)
        assert "qemu-system-arm" in found, said
        process.send_signal(how)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (130 if how == signal.SIGINT else 143 if how == signal.SIGTERM else -how)
    assert_gone(found["qemu-system-arm"])
    if how != signal.SIGKILL:
        assert not list((tmp_path / "tmp").glob("openneutron-*"))


@slow
def test_the_image_with_every_operator(programs):
    """It links, and a program runs on it."""
    core = CORES["cortex-m33"]
    image = build_server(core, sorted(wheel_operators()))
    with emulated_line(core, image) as port, connect(port, "qemu", baud=10**6, timeout=240) as board:
        run(board, programs["dscnn"].data, samples(NETWORKS["dscnn"], 1)["forward"])


@slow
@pytest.mark.timeout(3000)  # every byte goes over the emulated line, which is slow on a busy machine
@pytest.mark.parametrize("name", CORES)
def test_networks_of_every_kind_on_one_image(sources, name):
    """A hundred inputs of each, with broken programs before it; `-s` shows what was compared."""
    core, generator, everything = CORES[name], random.Random(0), []
    for net, recipe, int8 in KINDS:
        only, parts = "" if recipe == "neutron" else name, ON_CPU.get(net, ())
        data = compile_network(NETWORKS[net], recipe, only, parts, int8).data
        inputs = random_inputs(inspect_program(data).methods["forward"], 100, 0)
        if not int8:
            inputs = samples(NETWORKS[net], 100)["forward"]
        everything.append((f"{net} ({recipe}{', int8' if int8 else ''})", data, inputs))
    two = two_in()
    everything.append(("two inputs", two, random_inputs(inspect_program(two).methods["forward"], 100, 0)))
    operators = {op for _, d, _ in everything for op in inspect_program(d).methods["forward"].operators}
    image = build_server(core, sorted(operators))
    with emulated_line(core, image) as port, connect(port, "qemu", baud=10**6, timeout=480) as board:
        for net, program, inputs in everything:
            for bad in bad_programs(program, generator):
                assert try_broken(board, bad, bytes(4)) == "ON724"
            found = run(board, program, inputs, net)
            count = sum(o.size for outputs in found.outputs for o in outputs)
            median = found.statistics()["median"]
            print(f"| {core.name} | {net} | {len(program):,} | {len(inputs)} | {count:,} | {median:,.0f} |")


@pytest.mark.parametrize(
    "more",
    [
        ["--serve", "--bare"],
        ["--serve", "--port", "5"],
        ["--port", "5555", "x.pte"],
        [],
        ["--bare", "a", "b"],
    ],
)
def test_wrong_use(more):
    assert main(["firmware", *more]) == 2
