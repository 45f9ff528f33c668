"""What a pass is, and how a sequence of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.fx import GraphModule

PTQ, QAT = "ptq", "qat"


@dataclass(frozen=True)
class Pass:
    """A graph rewrite: `run` changes the module in place and says whether it did.

    `requires` names passes that must run before it, `ensures` is what holds of the graph afterwards.
    """

    name: str
    ensures: str
    run: Callable[[GraphModule], bool]
    requires: tuple[str, ...] = ()
    modes: tuple[str, ...] = (PTQ, QAT)


def check_order(passes: Iterable[Pass]) -> None:
    """Assert that every pass comes after those it requires; called once, where a sequence is defined."""
    seen: set[str] = set()
    for item in passes:
        missing = [name for name in item.requires if name not in seen]
        assert not missing, f"{item.name} must run after {', '.join(missing)}"
        seen.add(item.name)


def run_passes(model: GraphModule, passes: Iterable[Pass], mode: str = PTQ) -> GraphModule:
    """Run the passes meant for `mode` in order; dead code goes and the graph is checked after each change."""
    for item in passes:
        if mode in item.modes and item.run(model):
            model.graph.eliminate_dead_code()
            model.graph.lint()
            model.recompile()
    return model
