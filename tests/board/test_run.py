"""`run --board` against a board made of a pty: what a user reads, whatever the board does."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from openneutron.board.client import EXPLAINED, Client
from openneutron.board.frames import checksum
from openneutron.board.session import Board as Session
from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.package.pte import inspect_program
from tests.board.fake import BANNER, Board, Shape, Wire, crc16, frame, slowly
from tests.board.programs import layer_program, model_of

LOAD_MODEL, LOAD_INPUT, RUN, GET_INFO = 1, 2, 3, 4


@pytest.fixture(scope="module")
def model():
    return model_of(layer_program())


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "layer.pte"
    path.write_bytes(layer_program())
    return path


def run(board, program, *more):
    return main(["run", str(program), "--board", board.name, "--timeout", "60", "--quiet", *more])


def test_checksum_is_the_published_one():
    assert checksum(b"123456789") == crc16(b"123456789") == 0x29B1


def test_a_good_board(model, program, capsys):
    with Board(model, banner=BANNER) as board:
        assert run(board, program, "--samples", "7", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["values"] == data["equal"] == 21 and data["compared_with"] == "the host"
    assert (
        data["time"]["unit"] == "microseconds" and data["time"]["median"] == 848 and len(data["times"]) == 7
    )
    assert data["time_us_estimated"] > 0
    kept = json.loads(program.with_name("layer.measured.json").read_text())
    assert kept["runs"][0]["median"] == 848
    # The program is uploaded once; after a run an input is loaded again.
    commands = [command for command, _ in board.received]
    assert commands.count(LOAD_MODEL) == 1 and commands.count(LOAD_INPUT) == commands.count(RUN) == 7


def test_given_input_and_written_outputs(model, program, tmp_path, capsys):
    array = np.arange(6, dtype=np.float32)[None]
    np.save(tmp_path / "x.npy", array)
    with Board(model) as board:
        assert run(board, program, "--input", str(tmp_path / "x.npy"), "--output-dir", str(tmp_path)) == 0
    want = np.frombuffer(model.compute(array.tobytes())[0], np.float32)[None]
    np.testing.assert_array_equal(np.load(tmp_path / "output_0.npy"), want)
    assert "3 of 3 values equal" in capsys.readouterr().out


def on(command, change):
    """A fault of the answers to one command; the last of them if it comes more than once."""

    def fault(given, answer, board):
        return change(answer, board) if given == command else answer

    return fault


def _reset(answer, board):
    board.reset()


def _vanish(answer, board):
    board.disappear()


def _flip(at):
    def change(answer, board):
        data = bytearray(answer)
        data[at] ^= 0x10
        return bytes(data)

    return change


class Late:
    """Answers to RUN come one question late: the first is a result of nothing."""

    def __init__(self):
        self.waiting = None

    def __call__(self, command, answer, board):
        if command != RUN:
            return answer
        old, self.waiting = self.waiting, answer
        return answer if old is None else old + answer


STORIES = {
    # what the board does: (fault, exit code, what the user reads)
    "silent": (lambda c, a, b: None, 1, "ON722", "no answer to GET_INFO came within"),
    "silent after the upload": (on(LOAD_MODEL, lambda a, b: None), 1, "ON722", "no answer to LOAD_MODEL"),
    "silent at the run": (on(RUN, lambda a, b: None), 1, "ON722", "no answer to RUN"),
    "reset at the run": (on(RUN, _reset), 1, "ON723", "no answer to RUN came, but “ExecuTorch model runner"),
    "half a frame": (on(RUN, lambda a, b: a[: len(a) // 2]), 1, "ON723", "broke off in the middle"),
    "a wrong CRC": (on(RUN, _flip(-1)), 1, "ON723", "wrong checksum"),
    "a changed value": (on(RUN, _flip(30)), 1, "ON723", "wrong checksum"),
    "a length of gigabytes": (on(RUN, lambda a, b: a[:3] + b"\xff" * 4 + a[7:]), 1, "ON723", "claims more"),
    "gone at the run": (on(RUN, _vanish), 1, "ON722", "the line is gone"),
    "gone at once": (lambda c, a, b: _vanish(a, b), 1, "ON722", "the line is gone"),
    "an answer that came before": (Late(), 1, "ON723", "two results for one run"),
    "text between frames": (lambda c, a, b: b"log: heap 12 kB\r\n" + a + b"\r\nok\r\n", 0, "", ""),
    "a sync in the noise": (lambda c, a, b: b"\x55\xaa\x55\xaa\x81\x10\x00" + a, 0, "", ""),
    "an echo of the question": (lambda c, a, b: frame(c) + a, 0, "", ""),
    "an OK of an earlier question": (on(RUN, lambda a, b: frame(0x81) + a), 0, "", ""),
    "a slow line": (slowly(0.002), 0, "", ""),
    "an unknown status": (on(RUN, lambda a, b: frame(0x99, b"?")), 1, "ON723", "unknown status 0x99"),
    "an error without a code": (on(RUN, lambda a, b: frame(0xC0)), 1, "ON724", "does not say why"),
    "an error of the future": (on(RUN, lambda a, b: frame(0xC0, b"\x77hot")), 1, "ON724", "code 77"),
    "an empty result": (on(RUN, lambda a, b: frame(0x83)), 1, "ON723", "malformed"),
    "a result with more": (on(RUN, lambda a, b: frame(0x83, a[7:-2] + b"\0")), 1, "ON723", "claims more"),
    "a result cut off": (on(RUN, lambda a, b: frame(0x83, a[7:-3])), 1, "ON723", "in the middle of a field"),
    "a result of nothing": (on(RUN, lambda a, b: frame(0x83, bytes(9))), 1, "ON723", "its result is empty"),
    "OK for a result": (on(RUN, lambda a, b: frame(0x81)), 1, "ON722", "no answer to RUN"),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_what_the_user_reads(model, program, capsys, story):
    fault, exit_code, code, says = STORIES[story]
    for patience in ("1", "20") if exit_code else ("20",):  # a busy machine may be silent for a second itself
        with Board(model, fault=fault, banner=BANNER) as board:
            assert run(board, program, "--samples", "2", "--json", "--timeout", patience) == exit_code
        out, err = capsys.readouterr()
        if says in err:
            break
    assert "Traceback" not in err
    if exit_code:
        assert not out and f"error: {code}" in err and says in err and "hint:" in err, err
        assert not program.with_name("layer.measured.json").exists()
    else:
        assert json.loads(out)["equal"] == 6


@pytest.mark.parametrize("code", [*EXPLAINED, 0x55])
@pytest.mark.parametrize("command", [LOAD_MODEL, LOAD_INPUT, RUN])
def test_every_error_code_is_explained(model, program, command, code):
    board = Board(model, errors={command: (code, b"the board's own words")})
    message = str(failure(board))
    assert f"code {code:02x}" in message and "the board's own words" in message and "hint:" in message
    if code in EXPLAINED and not (code == 8 and command != LOAD_MODEL):
        assert EXPLAINED[code][0] in message


def test_a_reset_between_input_and_run_is_told(model):
    def fault(command, answer, board):
        if command == LOAD_INPUT:
            board._loaded = board._input = None
        return answer

    assert "it was reset" in str(failure(Board(model, fault=fault)))


def test_another_program_on_the_board_is_noticed(model):
    other = replace(model, inputs=[Shape("int8", (1, 24), 24)])
    assert "the program's inputs are int8[1, 24]" in str(failure(Board(other)))


def test_a_board_that_never_stops_talking(model):
    class Endless(Wire):
        def read(self, seconds):
            self.now += 0.01
            return b"spam "

    wire = Endless(Board(model))
    with pytest.raises(OpenNeutronError, match="never stops sending"):
        session(wire)


def test_wrong_values_are_not_believed(model, program, capsys):
    wrong = replace(model, compute=lambda given: [bytes(12)])
    with Board(wrong) as board:
        assert run(board, program) == 1
    assert "ON726" in (err := capsys.readouterr().err) and "3 of 3 values differ" in err
    assert not program.with_name("layer.measured.json").exists()


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("/dev/ttyNONE9", "ON720", "cannot be opened"),
        ("COM5", "ON720", "cannot be opened"),
        ("/dev/ttyNONE", "ON720", "/dev/ttyNONE: cannot be opened: No such file or directory\n"),
        ("socket://localhost:1", "ON720", "cannot be opened"),
        ("socket://localhost", "ON720", "is no address"),
        ("socket://[::1", "ON720", "is no address"),
        ("nonsense://x", "ON720", "cannot be opened"),
        ("loop://", "ON722", "no answer"),
        ("", "ON104", "is empty"),
    ],
)
def test_ports_that_are_none(program, capsys, name, code, says):
    assert main(["run", str(program), "--board", name, "--timeout", "0.3"]) == (2 if code == "ON104" else 1)
    err = capsys.readouterr().err
    assert f"error: {code}" in err and says in err, err


def test_a_port_that_is_a_file(program, capsys):
    assert main(["run", str(program), "--board", str(program), "--timeout", "0.3"]) == 1
    assert "error: ON720" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [["--baud", "0"], ["--timeout", "-1"], ["--timeout", "nan"], ["--samples", "0"], ["--repeat", "3"],
     ["--core", "cortex-m55"], ["--threads", "2"]],
)  # fmt: skip
def test_options_without_sense(program, more):
    assert main(["run", str(program), "--board", "socket://localhost:1", *more]) == 2


def test_without_pyserial_it_is_named(program, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "serial", None)
    assert main(["run", str(program), "--board", "/dev/ttyACM0"]) == 1
    assert "ON721" in (err := capsys.readouterr().err) and "openneutron[board]" in err


# --------------------------------------------------------------------------------------------------
# The same board without a pty: time passes only while nothing comes, so that thousands of runs are quick.


INFO = inspect_program(layer_program())
METHOD = INFO.methods["forward"]
INPUT = np.linspace(-1, 1, 6, dtype=np.float32)[None]


def session(wire, samples=1):
    """A whole session; the run it yields."""
    client = Client(wire, "board", baud=115200, timeout=2.0, clock=wire.clock)
    board = Session(client, "board")
    board.load(layer_program(), INFO, METHOD, "layer.pte", lambda part: None)
    return board.run(METHOD, [[INPUT + n] for n in range(samples)], lambda part: None)


def failure(board):
    with pytest.raises(OpenNeutronError) as caught:
        session(Wire(board))
    return caught.value.diagnostic


@pytest.mark.parametrize("command", [LOAD_MODEL, LOAD_INPUT, RUN, GET_INFO])
def test_frames_cut_at_every_byte(model, command):
    good = Board(model)
    lengths = []
    good.fault = on(command, lambda a, b: lengths.append(len(a)) or a)
    session(Wire(good))
    for length in range(max(lengths)):
        found = failure(Board(model, fault=on(command, lambda a, b, n=length: a[:n])))
        assert found.code in ("ON722", "ON723") and found.hint, f"cut after {length}"


class Corruption:
    """One of the answers of a session, damaged at random."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.at, self.seen = self.random.randrange(9), 0

    def __call__(self, command, answer, board):
        self.seen += 1
        return self.damage(answer) if self.seen - 1 == self.at else answer

    def damage(self, answer):
        r, data = self.random, bytearray(answer)
        kind = r.randrange(8)
        if kind == 0:
            data[r.randrange(len(data))] ^= 1 << r.randrange(8)
        elif kind == 1:
            for _ in range(r.randrange(1, 9)):
                data[r.randrange(len(data))] = r.randrange(256)
        elif kind == 2:
            del data[r.randrange(len(data)) :]
        elif kind == 3:
            at = r.randrange(len(data))
            del data[at : at + r.randrange(1, 8)]
        elif kind == 4:
            at = r.randrange(len(data))
            data[at:at] = r.randbytes(r.randrange(1, 20))
        elif kind == 5:
            data = bytearray(r.randbytes(r.randrange(200)))
        elif kind == 6:
            data = data + data  # answered twice
        else:
            at = r.randrange(len(data))
            data[at : at + 2], data[at + 2 : at + 4] = data[at + 2 : at + 4], data[at : at + 2]
        return bytes(data)


def corrupted(model, seeds):
    """Every session ends in the right values or in a diagnostic; how many of each."""
    want = [np.frombuffer(model.compute((INPUT + n).tobytes())[0], np.float32) for n in range(2)]
    good = 0
    for seed in seeds:
        wire = Wire(Board(model, fault=Corruption(seed)))
        found, problem = None, None
        try:
            found = session(wire, samples=2)
        except OpenNeutronError as error:
            problem = error.diagnostic
        if problem is not None:
            assert problem.code in ("ON722", "ON723", "ON724") and problem.hint, seed
        else:
            good += 1
            assert found.microseconds == (848, 848), seed
            assert all((o[0].ravel() == w).all() for o, w in zip(found.outputs, want, strict=True)), seed
        assert wire.now < 60, seed
    return good


def test_random_corruptions(model):
    assert 0 < corrupted(model, range(500)) < 400


@pytest.mark.slow  # ten thousand frames
def test_ten_thousand_random_corruptions(model):
    assert 0 < corrupted(model, range(1000, 11000)) < 8000
