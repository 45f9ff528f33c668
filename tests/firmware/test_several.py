"""Several programs in one image, and an application of one's own around them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.firmware.application import build_application, measure_application, run_application
from openneutron.firmware.whole import read_several, read_whole_program
from openneutron.package.join import join_programs
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from tests.firmware.whole import build_measured

pytestmark = pytest.mark.firmware
# The second method reads what the first gave, and reads it before anything else is written.
CASCADE = """
#include <string.h>
#include "application.h"
#include "text.inc"

bool application(void) {
    uint32_t bytes, given;
    const int32_t first = method_find("first"), second = method_find("second");
    if (method_find("third") >= 0 || method_input(second + 1, 0, &bytes) != NULL) return false;
    const int32_t file = semihosting_open("given.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("found.bin", SEMIHOSTING_WRITE);
    static float kept[64];
    for (int run = 0; run < 3; ++run) {
        void *input = method_input(first, 0, &bytes);
        if (!semihosting_read(file, input, bytes) || !method_run(first)) return false;
        const void *output = method_output(first, 0, &given);
        memcpy(kept, output, given);
        memcpy(method_input(second, 0, &bytes), kept, given);
        if (bytes != given || !method_run(second)) return false;
        output = method_output(second, 0, &bytes);
        if (!semihosting_write(to, output, bytes)) return false;
    }
    semihosting_close(to);
    semihosting_text("ran away\\nstack of ");
    semihosting_text(TEXT);
    return true;
}
"""


def network(seed: int, inputs: int, outputs: int) -> bytes:
    torch.manual_seed(seed)
    module = torch.nn.Sequential(
        torch.nn.Linear(inputs, 24), torch.nn.Sigmoid(), torch.nn.Linear(24, outputs)
    )
    samples = [(torch.randn(1, inputs),) for _ in range(8)]
    return compile_model(module, samples[0], calibration=samples).pte


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    given = {"first": network(0, 12, 20), "second": network(1, 20, 5)}
    for name, data in given.items():
        (folder / f"{name}.pte").write_bytes(data)
    return [folder / f"{name}.pte" for name in given]


def test_a_joined_program_computes_what_its_parts_do(files):
    parts = {file.stem: file.read_bytes() for file in files}
    joined = load_program(join_programs(parts))
    for (name, data), width in zip(parts.items(), (12, 20), strict=True):
        values = np.random.default_rng(0).standard_normal((1, width)).astype(np.float32)
        (one,), (two,) = load_program(data).run([values]), joined.run([values], name)
        assert np.array_equal(one, two) and np.abs(one).max() > 0


def test_memory_is_shared_and_kernels_are_linked_once(files, tmp_path, sources):
    alone = [build_measured(read_whole_program(f), tmp_path / f.stem, sources, "cortex-m33") for f in files]
    both = build_measured(read_several(files), tmp_path / "both", sources, "cortex-m33")
    for name in ("method", "planned", "temporary", "io"):
        assert getattr(both.pools, name) == max(getattr(one.pools, name) for one in alone)
    assert set(both.size.kernels) == {kernel for one in alone for kernel in one.size.kernels}
    assert both.size.text < sum(one.size.text for one in alone) * 0.6


def test_an_application_runs_a_cascade(files, tmp_path, sources):
    program = read_several(files)
    (tmp_path / "cascade.c").write_text(CASCADE)
    (tmp_path / "text.inc").write_text('#define TEXT "two"\n')
    build_application(program, [tmp_path / "cascade.c"], tmp_path / "image", sources)
    (tmp_path / "text.inc").write_text('#define TEXT "three"\n')  # what it includes is known by its content
    firmware = build_application(program, [tmp_path / "cascade.c"], tmp_path / "image", sources)
    given = np.random.default_rng(1).standard_normal((3, 1, 12)).astype(np.float32)
    (firmware.folder / "given.bin").write_bytes(given.tobytes())
    exact, run = measure_application(firmware)
    assert run.text == "ran away\nstack of three" and run.runs == {"first": 3, "second": 3}
    assert all(run.instructions[name] > 0 for name in run.runs) and run.own_instructions > 0
    loaded = load_program(program.data)
    wanted = [loaded.run([loaded.run([one], "first")[0]], "second")[0] for one in given]
    found = np.frombuffer((firmware.folder / "found.bin").read_bytes(), np.float32).reshape(3, 1, 5)
    assert np.array_equal(found, wanted)
    # A file that is missing is the application's own error.
    (firmware.folder / "given.bin").unlink()
    with pytest.raises(OpenNeutronError, match="ON704"):
        run_application(exact)


def test_the_command_builds_both(files, tmp_path, sources, capsys):
    assert main(["firmware", *map(str, files), "--run", "--json", "-o", str(tmp_path / "out")]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["methods"] == ["first", "second"] and data["run"]["equal"] == data["run"]["values"] > 0


def test_one_program_with_an_application_is_called_by_its_file(files):
    assert list(read_several(files[:1]).info.methods) == ["forward"]
    assert list(read_several(files[:1], named=True).info.methods) == ["first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FIRST", "FIRST"], "two programs are called first"),
        (["FIRST", "SECOND", "--bare"], "share ExecuTorch's runtime"),
        (["FIRST", "--application", "no.c", "--bare"], "goes with a whole program alone"),
        (["FIRST", "--application", "FIRST"], "is no .c or .cpp file"),
        (["FIRST", "--application", "no.c"], "no such file"),
        (["FIRST", "missing.pte"], "missing.pte"),
    ],
)
def test_what_does_not_go_together_is_said(files, arguments, message, sources, capsys, tmp_path):
    named = [str(files[0]) if a == "FIRST" else str(files[1]) if a == "SECOND" else a for a in arguments]
    assert main(["firmware", *named, "-o", str(tmp_path / "out")]) in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())


def test_methods_of_one_name_are_refused(files):
    data = files[0].read_bytes()
    both = join_programs({"a": data, "b": data})
    with pytest.raises(OpenNeutronError, match="two methods would have this name"):
        join_programs({"x": both, "x_a": data})


# The second method reads what the first remembers, whatever either computes in between.
SHARING = """
#include "application.h"

bool application(void) {
    uint32_t bytes;
    const int32_t methods[] = {method_find("write"), method_find("read")};
    const int32_t file = semihosting_open("given.bin", SEMIHOSTING_READ);
    const int32_t to = semihosting_open("found.bin", SEMIHOSTING_WRITE);
    for (int run = 0; run < 6; ++run) {
        void *input = method_input(methods[run % 2], 0, &bytes);
        if (!semihosting_read(file, input, bytes) || !method_run(methods[run % 2])) return false;
        const void *output = method_output(methods[run % 2], 0, &bytes);
        if (!semihosting_write(to, output, bytes)) return false;
    }
    semihosting_close(to);
    return true;
}
"""


class Mean(torch.nn.Module):
    """A running mean that starts from 2, and a layer."""

    def __init__(self, mean: torch.Tensor, width: int, writes: bool):
        super().__init__()
        self.register_buffer("mean", mean)
        self.layer, self.writes = torch.nn.Linear(width, 8), writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.layer(x)) + self.mean
        if self.writes:
            self.mean.copy_(found * 0.5)
        return found


def test_methods_share_a_state(tmp_path, sources):
    torch.manual_seed(0)
    mean = torch.full((1, 8), 2.0)
    modules = {"write": Mean(mean, 6, True).eval(), "read": Mean(mean, 90, False).eval()}
    frames = [("write", (torch.randn(1, 6),)), ("read", (torch.randn(1, 90),))] * 3
    pte = compile_model(modules, dict(frames[:2]), calibration=[frames] * 4).pte
    (tmp_path / "share.c").write_text(SHARING)
    (tmp_path / "program.pte").write_bytes(pte)
    program = read_whole_program(tmp_path / "program.pte")
    firmware = build_application(program, [tmp_path / "share.c"], tmp_path / "image", sources)
    (firmware.folder / "given.bin").write_bytes(b"".join(x.numpy().tobytes() for _, (x,) in frames))
    measure_application(firmware)
    loaded = load_program(pte)
    wanted = [loaded.run(inputs, name)[0] for name, inputs in frames]
    found = np.frombuffer((firmware.folder / "found.bin").read_bytes(), np.float32).reshape(6, 1, 8)
    assert np.array_equal(found, wanted) and not np.array_equal(found[1], found[3])
    # Two programs in one image have no place in common.
    both = read_several([tmp_path / "program.pte", _copied(tmp_path / "program.pte")])
    with pytest.raises(OpenNeutronError, match="ON709"):
        build_application(both, [tmp_path / "share.c"], tmp_path / "both", sources)


def _copied(path):
    other = path.with_name("other.pte")
    other.write_bytes(path.read_bytes())
    return other
