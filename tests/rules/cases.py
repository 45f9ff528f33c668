"""Cases of rules as text: a graph, and what one rule alone makes of it.

    # merge_reshapes
    graph test(...)
    =>
    graph test(...)

Without the second graph the rule must leave the first alone. `{?}` are values by chance, the same for the
same name and shape, for constants that matter to no reader.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openneutron.litert.ir import Graph, constant
from openneutron.litert.text import type_text

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    """A rule by its name, a graph, and the graph after it, or none if that is the same."""

    rule: str
    given: str
    wanted: str

    @property
    def graph(self) -> Graph:
        """The graph given."""
        return parse(self.given)


def read_cases() -> Iterator[Case]:
    """All cases of all files."""
    for file in sorted(FOLDER.glob("*.txt")):
        for part in re.split(r"^# ", file.read_text(), flags=re.MULTILINE)[1:]:
            rule, text = part.split("\n", 1)
            given, _, wanted = text.partition("=>\n")
            yield Case(rule.split(":")[0], given, wanted)


def parse(text: str) -> Graph:
    """A graph whose constants may be left to chance."""
    return Graph.parse(
        re.sub(r"(\w+): (int8|int32|float32)\[([\d,]+)\]([^:={}\n]*) \{\?\}", _by_chance, text)
    )


def _by_chance(found: re.Match[str]) -> str:
    name, dtype, dims, quant = found.groups()
    shape = tuple(map(int, dims.split(",")))
    values = np.random.default_rng(zlib.crc32(name.encode())).integers(-127, 128, shape).astype(dtype)
    return f"{name}: {type_text(constant(name, values))}".replace("] {", f"]{quant} {{")
