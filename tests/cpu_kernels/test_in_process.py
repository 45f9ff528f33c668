"""The CPU kernels in this process: the bits of ExecuTorch's own, which stay for what ours are not for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from openneutron.pipeline import compile_model
from openneutron.run.delegate import CPU_KERNELS, load_runtime
from openneutron.run.program import load_program

# ExecuTorch by itself, in a process of its own.
PLAIN = """
import sys, numpy as np, torch
from executorch.runtime import Runtime
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
given = np.load(sys.argv[2])
outputs = method.execute([torch.from_numpy(given[name]) for name in given.files])
np.savez(sys.argv[3], *[value.numpy() for value in outputs])
"""


class Windows(nn.Module):
    """Convolutions and pooling of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 10, 3, padding=2, dilation=2, groups=10),
            nn.Conv2d(10, 7, 1), nn.ConvTranspose2d(7, 5, 3, stride=2, padding=1, output_padding=1),
            nn.Hardtanh(-0.3, 0.4), nn.AvgPool2d(3, 2, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Values and indices."""
        x = self.layers(x)
        return (x, *nn.functional.max_pool2d(x, 2, return_indices=True))


class Moves(nn.Module):
    """Operators that move values, and some that compute; of integers too, which go to ExecuTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Several results."""
        y = torch.cat([x[:, ::2], x.transpose(1, 2).reshape(2, 6, 4)[:, :2]], 1)
        z = torch.maximum(x, x.mean(1, keepdim=True)).permute(2, 0, 1)
        a = torch.addmm(torch.ones(5), x.transpose(1, 2).reshape(8, 6), self.linear.weight.t())
        b = torch.minimum(whole, whole.transpose(0, 1)).clamp(-3, 5)
        return y, z, a, x[:, 1] + 0, b, x.clamp(-0.5, 0.5)


class Odd(nn.Module):
    """Types, ranks and sizes that few networks have: most of it falls back."""

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Several results."""
        mask = (x > 0) & (x < x.mean(1, keepdim=True) + 1)
        index = torch.minimum((places * 7 - 3).clamp(0, 9), places + 1)
        half = x.half()
        many = x.reshape(1, 2, 2, 3, 2, 3)
        five = x.reshape(2, 2, 3, 2, 3).permute(4, 2, 0, 3, 1)
        none = x[:, :0]
        return (
            torch.cat([mask, ~mask], 1).transpose(1, 2).contiguous(),
            torch.where(mask, x, x.mean(1, keepdim=True)), x >= x[:1], places == 3,
            torch.cat([index, places], 0)[::2].transpose(0, 1).contiguous(), (half + half * half).float(),
            torch.maximum(half, half[:1]).float(), many - many[:, :1, :, :1], many / (many[..., :1] + 3.5),
            five.transpose(0, 3).contiguous(), five.sum((0, 2)), torch.cat([none, x], 1), none + 1,
            torch.flip(x, [1])[:, ::3].contiguous(), x[:, -1] + 0, x[..., -3:-1] * 2,
        )  # fmt: skip


CASES = {
    "odd": (Odd(), (torch.randn(2, 6, 6), torch.arange(-8, 8).reshape(4, 4))),
    "windows": (Windows(), (torch.randn(2, 3, 13, 11),)),
    "moves": (Moves(), (torch.randn(2, 6, 4), torch.arange(-8, 8, dtype=torch.int32).reshape(4, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_executorch(name: str, tmp_path: Path):
    module, inputs = CASES[name]
    made = compile_model(module.eval(), inputs, delegate=False, verify=False)
    (tmp_path / "program.pte").write_bytes(made.pte)
    arrays = [x.numpy() for x in inputs]
    np.savez(tmp_path / "inputs.npz", *arrays)
    files = [str(tmp_path / f) for f in ("program.pte", "inputs.npz", "outputs.npz")]
    subprocess.run([sys.executable, "-c", PLAIN, *files], check=True, capture_output=True)
    expected = np.load(tmp_path / "outputs.npz")
    found = load_program(tmp_path / "program.pte").run(arrays)
    assert len(found) == len(expected.files)
    for array, file in zip(found, expected.files, strict=True):
        assert array.shape == expected[file].shape
        assert array.tobytes() == expected[file].tobytes()


def test_they_are_put_in_once():
    import ctypes

    load_runtime()
    assert ctypes.CDLL(str(CPU_KERNELS)).neutron_use_cpu_kernels() == 0


OWN = """
import ctypes, os
from openneutron.run.delegate import CPU_KERNELS, load_runtime
load_runtime()
use = ctypes.CDLL(str(CPU_KERNELS)).neutron_use_cpu_kernels
first = use()
del os.environ["OPENNEUTRON_PORTABLE_KERNELS"]
print(first, use() > 15)
"""


def test_executorchs_own_stay_where_they_are_asked_for():
    environment = {**os.environ, "OPENNEUTRON_PORTABLE_KERNELS": "1"}
    found = subprocess.run([sys.executable, "-c", OWN], env=environment, capture_output=True, text=True)
    assert found.stdout.split() == ["0", "True"], found.stderr
