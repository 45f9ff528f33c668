"""Names of weights that torch.fx can write as Python: a module or buffer may be called anything.

`module.add_module('a"b', ...)` is allowed, and torch.fx writes that name into the source of `forward` as it
is, where it ends a string, is a keyword, or stands for something that every graph module has.
"""

from __future__ import annotations

import keyword
import re
from functools import cache

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule
from torch.nn import Module


def with_plain_names(program: ExportedProgram) -> ExportedProgram:
    """The program, in which weights whose names would be no Python have others."""
    signature = program.graph_signature
    specs = [s for s in (*signature.input_specs, *signature.output_specs) if isinstance(s.target, str)]
    taken = {str(s.target) for s in signature.input_specs if s.target is not None}
    weights = taken & {*program.state_dict, *program.constants}
    renamed: dict[str, str] = {}
    for name in sorted(weights):
        first, *others = name.split(".")
        first = f"{first}_" if first in _attributes() else first
        plain = ".".join(map(_plain, (first, *others)))
        if plain != name:
            while plain in taken:
                plain += "_"
            taken.add(plain)
            renamed[name] = plain
    if not renamed:
        return program
    for spec in specs:
        spec.target = renamed.get(str(spec.target), spec.target)
    program._state_dict = {renamed.get(key, key): value for key, value in program.state_dict.items()}
    program._constants = {renamed.get(key, key): value for key, value in program.constants.items()}
    return program


@cache
def _attributes() -> frozenset[str]:
    """What every graph module has: `graph`, `code`, `meta` and more."""
    return frozenset(dir(GraphModule(Module(), Graph())))


def _plain(part: str) -> str:
    if keyword.iskeyword(part):
        return f"{part}_"
    return part if part.isprintable() and not set('"\\') & {*part} else re.sub(r"\W", "_", part)
