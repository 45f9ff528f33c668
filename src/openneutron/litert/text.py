"""Graphs as text: what `str(graph)` prints, and the parser that reads it back, to the last bit.

    graph main(x: int8[1,4,6] 0.05@-3)
      y: int8[4,6] 0.05@-3 = RESHAPE(x, y_shape: int32[2] {4, 6}) from view with newShape=(4, 6)
      return y

A tensor has its type where it first stands: element type, shape, quantization (`scale@zero point`; lists of
both, and the axis, where there are several) and a constant's values in braces (`0*9` is nine zeros; many
different ones are compressed, in base64). `-` is an operand left out, `from` has the source nodes of an op,
`with` its options. The name of a custom operator is quoted, as is any name that is no identifier. What the
graph remembers are its last inputs and outputs; `state` has the name and the initial values of each.
"""

from __future__ import annotations

import ast
import base64
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import numpy as np

from openneutron.litert.ir import DTYPES, Builtin, Graph, Op, Quant, State, Tensor, constant

_MOST_VALUES = 32  # of a constant that is written out
_NAME = r'[A-Za-z_][\w.]*|"(?:[^"\\]|\\.)*"'
_REAL = r"-?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)"
T = TypeVar("T")


def graph_text(graph: Graph) -> str:
    """A graph as text."""
    typed: set[Tensor] = set()

    def written(tensors: Iterable[Tensor | None]) -> str:
        return ", ".join("-" if t is None else tensor(t) for t in tensors)

    def tensor(t: Tensor) -> str:
        first = t not in typed
        typed.add(t)
        return _name(t.name) + (f": {type_text(t)}" if first else "")

    lines = [f"graph {_name(graph.name)}({written(graph.inputs)})"]
    for op in graph.ops:
        custom = json.dumps(op.custom_name) if op.kind is Builtin.CUSTOM else op.kind.name
        line = f"  {written(op.outputs)} = {custom}({written(op.inputs)})"
        line += f" from {', '.join(map(_name, op.origin))}" if op.origin else ""
        options = ", ".join(f"{key}={_literal(value)}" for key, value in op.options.items())
        lines.append(line + (f" with {options}" if options else ""))
    lines.append(f"  return {written(graph.outputs)}")
    starts = (constant(f"{state.name}:start", state.initial) for state in graph.states)
    return "\n".join([*lines, *(f"  state {_name(t.name)}: {type_text(t)}" for t in starts)])


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name, re.ASCII) else json.dumps(name)


def type_text(t: Tensor) -> str:
    """What stands behind the name of a tensor."""
    text = f"{t.dtype}[{','.join(map(str, t.shape))}]"
    if (q := t.quant) is not None:
        scales = np.array(q.scale, np.float32)
        several = f"({_runs(scales)})@({_runs(q.zero_point)})"
        text += f" {scales[0]!s}@{q.zero_point[0]}" if q.is_per_tensor else f" {several}"
        text += f" axis {q.axis}" if q.axis else ""
    if t.data is None:
        return text
    values = _runs(t.data.reshape(-1)) if t.elements <= _MOST_VALUES or not t.data.any() else ""
    if t.elements and (not values or "nan" in values):
        values = ":" + base64.b64encode(zlib.compress(t.data.tobytes(), 9)).decode()
    return f"{text} {{{values}}}"


def _runs(values: Iterable[Any]) -> str:
    groups = [(value, len(list(same))) for value, same in itertools.groupby(map(str, values))]
    return ", ".join(f"{value}*{n}" if n > 2 else ", ".join([value] * n) for value, n in groups)


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, IntEnum | np.integer):
        return str(int(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"  # what Python reads as infinity
    plain = isinstance(value, int | float | str | bytes | None)
    return repr(value) if plain else f"<{type(value).__name__}>"  # an island's plan: nothing to read back


def parse_graph(text: str) -> Graph:
    """The graph that `str` printed so, verified; a ValueError names the line that is something else."""
    return _Parser(text).graph().verify()


class _Parser:
    def __init__(self, text: str):
        self.text, self.at = text.strip(), 0
        self.tensors: dict[str, Tensor] = {}

    def graph(self) -> Graph:
        """The whole text."""
        self.expect("graph ")
        name = self.name()
        self.expect(r"\(")
        inputs, ops = self.list(self.tensor, r"\)"), []
        while not self.take(r"\s*return(?: |\Z)"):
            ops.append(self.op())
        outputs = self.list(self.tensor, r"(?=\n)|\Z")
        states = []
        while self.take(r"\s*state "):
            start = self.tensor()
            states.append(State(start.name.removesuffix(":start"), start.array))
        self.expect(r"\Z")
        return Graph(inputs, outputs, ops, name, tuple(states))

    def op(self) -> Op:
        """One line."""
        self.expect(r"\s*")
        outputs = self.list(self.tensor, " = ")
        start, name = self.at, self.expect(_NAME)
        if not name.startswith('"') and name not in Builtin.__members__:
            self.fail("an operator of LiteRT, or the name of a custom one in quotes", start)
        self.expect(r"\(")
        inputs = self.list(self.operand, r"\)")
        origin = tuple(self.list(self.name, r"(?= with |\n)")) if self.take(" from ") else ()
        options = self.options() if self.take(" with ") else {}
        self.expect(r" *\n")
        if name.startswith('"'):
            return Op(Builtin.CUSTOM, inputs, outputs, options, origin, json.loads(name))
        return Op(Builtin[name], inputs, outputs, options, origin)

    def options(self) -> dict[str, Any]:
        """The rest of the line, as Python's keyword arguments."""
        start, text = self.at, self.expect(".*")
        try:
            call = ast.parse(f"f({text})", mode="eval").body
            if isinstance(call, ast.Call) and not call.args and all(word.arg for word in call.keywords):
                return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        except (SyntaxError, ValueError):
            pass
        self.fail("options: `axis=1, keepDims=True`", start)

    def operand(self) -> Tensor | None:
        """A tensor, or none."""
        return None if self.take(r"-(?=[,)])") else self.tensor()

    def tensor(self) -> Tensor:
        """A tensor by its name, or a new one with its type."""
        start, name = self.at, self.name()
        if not self.take(": "):
            return self.tensors[name] if name in self.tensors else self.fail("a tensor with its type", start)
        dtype = self.expect("|".join(DTYPES))
        self.expect(r"\[")
        shape = tuple(map(int, self.list(lambda: self.expect(r"\d+"), r"\]", ",")))
        quant = self.quant()
        data = self.data(dtype, shape) if self.take(r" \{") else None
        if name in self.tensors:
            self.fail(f"another name than {name}, which is taken", start)
        self.tensors[name] = Tensor(name, shape, dtype, quant, data)
        return self.tensors[name]

    def quant(self) -> Quant | None:
        """The quantization, if there is one."""
        if self.take(r" \("):
            scales, zeros = self.runs(r"\)@\("), self.runs(r"\)")
        elif token := self.take(rf" {_REAL}@-?\d+"):
            scales, zeros = ([part] for part in token.split("@"))
        else:
            return None
        axis = int(self.expect(r"\d+")) if self.take(" axis ") else 0
        return Quant(tuple(float(np.float32(s)) for s in scales), tuple(map(int, zeros)), axis)

    def data(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A constant's values; no more are made than the shape has."""
        start, size = self.at, math.prod(shape) * DTYPES[dtype]
        try:
            if packed := self.take(":[^}]*}"):
                raw = base64.b64decode(packed[1:-1], validate=True)
                return np.frombuffer(zlib.decompressobj().decompress(raw, size + 1), dtype).reshape(shape)
            values = self.runs("}", size)
            read = np.array(values, str) == "True" if dtype == "bool" else np.array(values, str).astype(dtype)
            return read.reshape(shape)
        except (ValueError, OverflowError, zlib.error) as error:
            self.fail(f"{dtype} values of shape {list(shape)} ({error})", start)

    def runs(self, end: str, most: int = 1 << 24) -> list[str]:
        """Numbers, and how often each."""
        parts: list[str] = []
        for item in self.list(lambda: self.expect(rf"(?:{_REAL}|True|False)(?:\*\d+)?"), end):
            value, _, count = item.partition("*")
            times = int(count or 1)
            if len(parts) + times > most:
                raise ValueError("too many")
            parts += [value] * times
        return parts

    def name(self) -> str:
        """A name, quoted or not."""
        text = self.expect(_NAME)
        return str(json.loads(text)) if text.startswith('"') else text

    def list(self, item: Callable[[], T], end: str, comma: str = ", ") -> list[T]:
        """Items up to the end."""
        items: list[T] = []
        while self.take(end) is None:
            if items:
                self.expect(comma)
            items.append(item())
        return items

    def take(self, pattern: str) -> str | None:
        """What is here, if it is as the pattern says."""
        match = re.compile(pattern, re.ASCII).match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match.group() if match else None

    def expect(self, pattern: str) -> str:
        """The same, and an error if it is not."""
        token = self.take(pattern)
        return self.fail(f"`{pattern}`") if token is None else token

    def fail(self, wanted: str, at: int | None = None) -> NoReturn:
        """Say where, and what should be there."""
        before = self.text[: self.at if at is None else at]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        raise ValueError(f"line {line}, column {column}: expected {wanted}")
