"""Methods of one program: what their modules have in common they share, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.cli import main
from openneutron.diagnostics import OpenNeutronError
from openneutron.fx import op_name
from openneutron.pipeline import compile_model
from openneutron.run.program import load_program
from openneutron.tensors import results

ROWS, WIDTH, PROMPT = 12, 8, 4


class Cache(nn.Module):
    """Attention over a cache, which starts from ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.ones(1, 2, ROWS, WIDTH))
        self.key, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(2, at, self.key(x))
        scores = x @ self.keys.transpose(-1, -2)
        seen = torch.arange(ROWS) <= at[:, None]
        return self.head(torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ self.keys)


class Prefill(nn.Module):
    """The first tokens at once."""

    def __init__(self, cache: Cache):
        super().__init__()
        self.cache = cache

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cache(x, torch.arange(PROMPT))


class Peek(nn.Module):
    """Reads the cache by another name, and has a state of its own under the cache's name."""

    def __init__(self, cache: Cache):
        super().__init__()
        self.other = cache
        self.register_buffer("keys", torch.zeros(1, 2, 1, ROWS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ self.other.keys.transpose(-1, -2) + self.keys
        self.keys.copy_(scores * 0.5)
        return scores


def _sequence(seed: int) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> torch.Tensor:
        return torch.rand(1, 2, count, WIDTH, generator=generator) * 2 - 1

    frames: list[tuple[str, tuple[torch.Tensor, ...]]] = [("prefill", (tokens(PROMPT),))]
    for at in range(PROMPT, ROWS):
        frames += [("decode", (tokens(1), torch.tensor([at]))), ("peek", (tokens(1),))]
    return frames


@pytest.fixture(scope="module")
def shared():
    torch.manual_seed(0)
    cache = Cache().eval()
    modules = {"prefill": Prefill(cache), "decode": cache, "peek": Peek(cache).eval()}
    sequences = [_sequence(seed) for seed in range(4)]
    first = {name: next(x for n, x in sequences[0] if n == name) for name in modules}
    before = [b.clone() for m in modules.values() for b in m.buffers()]
    program = compile_model(modules, first, calibration=sequences, accuracy="fast")
    assert all(map(torch.equal, before, (b for m in modules.values() for b in m.buffers())))
    return modules, program


def test_what_one_method_writes_the_others_read(shared):
    modules, program = shared
    loaded, other = load_program(program.pte), load_program(program.pte)
    for seed in (7, 8):
        starts = [(b, b.clone()) for m in modules.values() for b in m.buffers()]
        wanted: dict[str, list[np.ndarray]] = {name: [] for name in modules}
        found: dict[str, list[np.ndarray]] = {name: [] for name in modules}
        for name, inputs in _sequence(seed):
            with torch.no_grad():
                wanted[name].append(results(modules[name](*inputs))[0].numpy())
            found[name] += loaded.run(inputs, name)
        for name in modules:
            good, off = np.stack(wanted[name]), np.stack(found[name]) - np.stack(wanted[name])
            assert np.linalg.norm(off) < 0.06 * np.linalg.norm(good), name  # 24 dB
        loaded.reset()
        for buffer, start in starts:
            buffer.copy_(start)
    prompt, token = _sequence(7)[:2]
    assert np.array_equal(other.run(prompt[1], "prefill")[0], loaded.run(prompt[1], "prefill")[0])
    alone = load_program(program.pte).run(token[1], "decode")[0]  # without the prompt
    assert not np.array_equal(other.run(token[1], "decode")[0], alone)
    loaded.reset()
    assert np.array_equal(loaded.run(token[1], "decode")[0], alone)


def test_shared_state_is_int8_and_planned_once(shared):
    _, program = shared
    assert program.shared_states == [("cache.keys", 2 * ROWS * WIDTH)]  # a byte each
    assert [name for name, _ in program.states] == ["keys"]  # peek's own, in its delegate
    assert {m.planned_buffers[1] for m in program.info.methods.values()} == {2 * ROWS * WIDTH}
    assert not program.rejected and len(program.partitions) == 3
    for name, method in program.methods.items():
        steps = [n for n in method.graph.nodes if "quantize" in op_name(n)]
        # Its input and its output; what peek returns is its state, which is float.
        assert len(steps) == (1 if name == "peek" else 2), f"{name}: {steps}"


def test_run_takes_a_method_by_its_name(shared, tmp_path, capsys):
    file = shared[1].save(tmp_path / "methods.pte")
    assert main(["run", str(file), "--method", "peek", "--output-dir", str(tmp_path), "--trust"]) == 0
    assert np.load(tmp_path / "output_0.npy").shape == (1, 2, 1, ROWS)
    assert main(["run", str(file), "--trust"]) == 1
    assert "Give --method: decode, peek, prefill" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("same", [True, False])
def test_what_the_cpu_remembers_is_safe_from_other_methods(same: bool):
    class Counter(nn.Module):
        def __init__(self, width: int, start: torch.Tensor):
            super().__init__()
            self.layer = nn.Linear(width, width)
            self.register_buffer("n", start, persistent=width == 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.n.add_(1)
            return torch.sin(self.layer(x)), self.n.clone()

    start = torch.tensor([5])
    modules = {"a": Counter(4, start), "b": Counter(64, start if same else torch.tensor([100]))}
    inputs = {"a": (torch.randn(1, 4),), "b": (torch.randn(1, 64),)}
    programs = {name: torch.export.export(module, inputs[name]) for name, module in modules.items()}
    for given in (modules, programs, programs):  # twice: compiling changes nothing of what is given
        loaded = load_program(compile_model(given, inputs).pte)
        found = [int(loaded.run(inputs[name], name)[1][0]) for name in "abab"]
        assert found == ([6, 7, 8, 9] if same else [6, 101, 7, 102])


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        ([[("prefil", ())]], "ON104.*calibration.*prefil"),
        ([[(torch.zeros(1),)]], "ON104.*calibration"),
        ({"prefill": [(torch.zeros(1, 2, PROMPT, WIDTH),)]}, "ON209.*decode"),
    ],
)
def test_calibration_that_fits_no_method_is_refused(calibration, message: str):
    cache = Cache().eval()
    inputs = {"prefill": _sequence(0)[0][1], "decode": _sequence(0)[1][1]}
    with pytest.raises(OpenNeutronError, match=message):
        compile_model({"prefill": Prefill(cache), "decode": cache}, inputs, calibration=calibration)
