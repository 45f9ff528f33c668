"""Python code of graph modules on demand: made when somebody calls one, not whenever its graph has changed.

torch.fx writes and compiles the code of a whole module after every pass, in every copy and in every exported
program. On the way to a .pte few of them are ever called.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from weakref import ref

from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen

from openneutron.fast_export.shortcuts import CODE_ON_DEMAND, check_variable, is_taken

_compile: Any = GraphModule.recompile


class _Forward:
    """`forward` of a module without code: whoever asks for it lets it be made."""

    def __init__(self, module: GraphModule):
        self._module = ref(module)

    def __get__(self, module: GraphModule | None, cls: type) -> Any:
        owner_module = self._module()
        assert owner_module is not None
        code_of(owner_module)
        owner: Any = cls if module is None else module
        return owner.forward


def code_of(module: GraphModule) -> str:
    """The code of a module as its graph is now."""
    cls: Any = type(module)  # torch.fx makes one for each instance
    if isinstance(vars(cls).get("forward"), _Forward):
        _compile(module)
    return module._code


def _set_code(module: GraphModule, code: str) -> None:
    """From the first code on, it is an attribute as it always was."""
    cls: Any = type(module)
    del cls._code
    module._code = code


def _reduce(module: GraphModule) -> Any:
    """What pickle writes is the code, which it takes without asking for it."""
    code_of(module)
    return GraphModule.__reduce__(module)


def share_code(source: GraphModule, made: GraphModule) -> None:
    """Give a copy of a module the code that this one has, as long as its graph is not changed."""
    code = code_of(source)
    cls: Any = type(made)
    if isinstance(vars(cls).get("forward"), _Forward):
        made._code, made._lineno_map = code, source._lineno_map
        made._prologue_start = source._prologue_start
        cls.forward = vars(type(source))["forward"]


def _postpone(module: GraphModule) -> None:
    if isinstance(module._graph._codegen, _PyTreeCodeGen):
        module._in_spec = module._graph._codegen.pytree_info.in_spec
        module._out_spec = module._graph._codegen.pytree_info.out_spec
    cls: Any = type(module)
    cls.forward, cls._code, cls.__reduce__ = _Forward(module), property(code_of, _set_code), _reduce


_lock, _inside, _frozen = Lock(), 0, False


@contextmanager
def code_on_demand() -> Iterator[None]:
    """Let graph modules that are made or changed inside have their code when it is asked for.

    Objects that were there before are no concern of Python's garbage collector meanwhile: to look at all that
    torch has imported takes it as long as a small network takes to compile.
    """
    check_variable()
    if not is_taken(CODE_ON_DEMAND):
        yield
        return
    _enter(1)
    try:
        yield
    finally:
        _enter(-1)


def _enter(step: int) -> None:
    """Threads may compile at the same time: the last one leaves torch as it was."""
    global _inside, _frozen
    with _lock:
        _inside += step
        if _inside and not _frozen and gc.get_freeze_count() == 0:  # else they are the application's
            gc.freeze()
            _frozen = True
        elif not _inside and _frozen:
            gc.unfreeze()
            _frozen = False
        GraphModule.recompile = _postpone if _inside else _compile  # type: ignore[method-assign, assignment]
