"""Rewriting by named rules: what a rule looks for, why it is right, and the one rewriter that applies them.

    @rule(Builtin.RESHAPE, Builtin.RESHAPE)
    def merge_reshapes(g: Rewriter, before: Op, op: Op) -> bool:
        '''RESHAPE of a RESHAPE: only the last shape counts.'''
        ...

A pattern is a chain of operators: the last is the one looked at, each other makes the first operand of the
next. The function gets the operators found; it changes the graph, or returns False. Groups are lists of rules
and `run` applies them. A graph written as text (`litert.text`) is enough to try one rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from openneutron.litert.ir import Builtin, Graph, Op, Trait, kinds
from openneutron.litert.rewriter import Rewriter, drop_dead_ops

Operators = Builtin | Trait | str | tuple[Builtin, ...]
"""One link of a pattern: an operator, all with a trait, a custom operator by its name, or one of several."""
ANY = Trait(0)


@dataclass(frozen=True)
class Rule:
    """One rewrite. `facts` is what it has to know of the whole graph; if that is nothing, it does nothing."""

    name: str
    reason: str
    pattern: tuple[Operators, ...]
    function: Callable[..., bool]
    facts: Callable[[Graph], Any] | None = None

    @cached_property
    def links(self) -> tuple[frozenset[Builtin | str] | None, ...]:
        """The operators that each link of the pattern matches, custom ones by name; None is any."""
        return tuple(map(_matching, self.pattern))

    def looks_at(self, op: Op) -> bool:
        """Whether the op is one that the pattern ends in."""
        return self.links[-1] is None or op.key in self.links[-1]

    def apply(self, g: Rewriter, op: Op, *facts: Any) -> bool:
        """Rewrite at an op, if the pattern is there."""
        matches: list[Op] = []
        at: Op | None = op
        for link in reversed(self.links):
            at = g.maker(matches[0].operand(0)) if matches else at
            if at is None or not (link is None or at.key in link):
                return False
            matches.insert(0, at)
        return self.function(g, *matches, *facts)


def _matching(link: Operators) -> frozenset[Builtin | str] | None:
    if isinstance(link, Trait):
        return frozenset(kinds(link)) if link is not ANY else None
    return frozenset(link if isinstance(link, tuple) else (link,))


def rule(
    *pattern: Operators, facts: Callable[[Graph], Any] | None = None
) -> Callable[[Callable[..., bool]], Rule]:
    """Make a function a rule: its name is the rule's, its docstring the reason."""

    def make(function: Callable[..., bool]) -> Rule:
        return Rule(function.__name__, (function.__doc__ or "").strip(), pattern, function, facts)

    return make


@dataclass(frozen=True)
class Group:
    """Rules that run together: each once over all operators, in order, or all until none of them fires."""

    name: str
    rules: tuple[Rule, ...]
    until_none_fires: bool = False

    def without(self, name: str, *rules: Rule) -> Group:
        """The group, under another name, without some of its rules."""
        return Group(name, tuple(r for r in self.rules if r not in rules), self.until_none_fires)


def run(graph: Graph, groups: Iterable[Group], counts: Counter[str] | None = None) -> Graph:
    """Apply groups of rules in order, verifying what they change; adds to `counts` how often each fired."""
    fired: Counter[str] = Counter() if counts is None else counts
    for group in groups:
        if group.until_none_fires:
            graph = _until_none_fires(graph, group.rules, fired)
        else:
            for each in group.rules:
                graph = _once(graph, each, fired)
    return graph


def _once(graph: Graph, each: Rule, fired: Counter[str]) -> Graph:
    """Every op in order, once; what nobody reads after that goes."""
    if not any(map(each.looks_at, graph.ops)):
        return graph
    facts = [] if each.facts is None else [each.facts(graph)]
    if not all(facts):
        return graph
    g = Rewriter(graph)
    times = sum(g.apply(each.apply, op, *facts) for op in g.ops)
    fired[each.name] += times
    return drop_dead_ops(g.graph()).verify() if times else graph


def _until_none_fires(graph: Graph, rules: tuple[Rule, ...], fired: Counter[str]) -> Graph:
    g, changed = Rewriter(graph), True
    while changed:
        changed = False
        for each in rules:
            for op in g.ops:
                if each.looks_at(op) and g.apply(each.apply, op):
                    fired[each.name] += 1
                    changed = True
        if changed:
            graph = g.graph().verify()
    return graph
