"""The shortcuts: each does quickly what torch, torchao or ExecuTorch would do slowly, with the same result.

All of them together: the zoo's GRU classifier compiles in 2.3 s of CPU time in place of 37, DS-CNN in 2.1 in
place of 5.3, to the same bytes.

    OPENNEUTRON_WITHOUT_SHORTCUTS=all            everything goes the way its authors wrote it
    OPENNEUTRON_WITHOUT_SHORTCUTS=lift,imports   these do; to find out which one is to blame, or what it gains

`tests/fast_export/test_shortcuts.py` compiles networks with all of them and with none and compares the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from openneutron.diagnostics import fail, nearest

VARIABLE = "OPENNEUTRON_WITHOUT_SHORTCUTS"
ALL = "all"


@dataclass(frozen=True)
class Shortcut:
    """What goes round a library, why, and what that was measured to gain."""

    name: str
    file: str
    round: str  # what is not asked
    reason: str
    gain: str  # CPU seconds of `compile_model` without and with it: accuracy "fast", not verified, one thread


LIFT = Shortcut(
    "lift",
    "fast_export/lift.py",
    "torch.export.export of what torchao has converted",
    "the graph is ATen already; tracing only names its nodes and infers shapes that repeat",
    "GRU classifier of 16 steps: 3.6 s and 2.3 s",
)
RECURRENT_SHAPES = Shortcut(
    "recurrent_shapes",
    "fast_export/recurrent_shapes.py",
    "torch's shape inference of nn.LSTM, nn.GRU and nn.RNN",
    "it goes through all steps of the sequence, though two tell the shapes of any number",
    "nothing at 16 steps; torch's time grows with the length of the sequence",
)
CODE_ON_DEMAND = Shortcut(
    "code_on_demand",
    "fast_export/code_on_demand.py",
    "torch.fx.GraphModule.recompile, and the garbage collector on what was there before",
    "Python code is written and compiled after every pass, and hardly ever called",
    "GRU classifier 2.5 s and 2.3 s, DS-CNN 2.3 s and 2.1 s",
)
COUNTED_NAMES = Shortcut(
    "counted_names",
    "fast_export/counted_names.py",
    "torchao's search for a free name of an observer",
    "it begins at 0 for each, which is quadratic in the number of observers",
    "nothing at 16 steps; torchao's time grows with the square of their number",
)
NORM_PATTERNS = Shortcut(
    "norm_patterns",
    "fast_export/norm_patterns.py",
    "torchao's search for what training leaves of batch norms",
    "it exports 96 small networks each time; those of convolutions that are not there find nothing",
    "training a network with batch norms: 8.6 s and 6.1 s, the next in the same process 0.7 s",
)
COMPOSITE_OPERATORS = Shortcut(
    "composite_operators",
    "fast_export/composite_operators.py",
    "torch.export's list of composite operators, and its kernels for all of them",
    "it goes through every registered operator, for a graph that has hardly any after partitioning",
    "a network of eight layers, every time: 0.31 s and 0.17 s",
)
IMPORTS = Shortcut(
    "imports",
    "fast_export/quick_imports.py",
    "ruamel.yaml in ExecuTorch's Edge dialect, and torch's Inductor in torch.export",
    "libyaml reads the same 138 KB, and nothing here compiles with Inductor",
    "0.5 s and 1 s of every start",
)
BEFORE_EDGE = Shortcut(
    "before_edge",
    "package/before_edge.py",
    "ExecuTorch's Edge dialect for what the NPU computes",
    "each of its passes runs every operator for shapes; partitions are taken out before",
    "GRU classifier 27.8 s and 2.3 s, DS-CNN 3.7 s and 2.1 s",
)
SHORTCUTS = (
    LIFT,
    RECURRENT_SHAPES,
    CODE_ON_DEMAND,
    COUNTED_NAMES,
    NORM_PATTERNS,
    COMPOSITE_OPERATORS,
    IMPORTS,
    BEFORE_EDGE,
)


def is_taken(shortcut: Shortcut) -> bool:
    """Whether a shortcut is taken: unless the environment says otherwise."""
    return not {ALL, shortcut.name} & set(_without())


def check_variable() -> None:
    """Refuse a name in the environment that is no shortcut's."""
    names = [ALL, *(each.name for each in SHORTCUTS)]
    for name in _without():
        if name not in names:
            fail("ON104", f"environment variable {VARIABLE}", f"there is no shortcut '{name}'",
                 nearest(name, names))  # fmt: skip


class Replaced:
    """Functions of other packages' modules that are others, unless the shortcut is not taken.

    They are replaced as long as some thread is inside, and left as they were.
    """

    def __init__(self, shortcut: Shortcut, *replacements: tuple[Any, Mapping[str, Callable[..., Any]]]):
        self._shortcut = shortcut
        self._others = [(module, *other) for module, others in replacements for other in others.items()]
        self._own: list[tuple[Any, str, Any]] = []
        self._lock, self._inside = Lock(), 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not is_taken(self._shortcut):
            yield
            return
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._own = [(module, name, getattr(module, name)) for module, name, _ in self._others]
                self._set(self._others)
            self._inside += 1

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._set(self._own)

    @staticmethod
    def _set(functions: list[tuple[Any, str, Any]]) -> None:
        for module, name, function in functions:
            setattr(module, name, function)


def _without() -> list[str]:
    return [name for name in os.environ.get(VARIABLE, "").split(",") if name]
