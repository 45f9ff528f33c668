"""Names of observers, counted on from the last one.

torchao looks for a free one from 0 on, every time: of a long recurrent network that is most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

from openneutron.fast_export.shortcuts import COUNTED_NAMES, is_taken


@contextmanager
def counted_names() -> Iterator[None]:
    """Let torchao, inside, count on from the last name of an observer."""
    if not is_taken(COUNTED_NAMES):
        yield
        return
    module: Any = import_module("torch.ao.quantization.fx.prepare")  # its package has a function of that name
    slow = module.get_new_attr_name_with_prefix
    after: dict[str, int] = {}

    def quick(prefix: str) -> Callable[[torch.nn.Module], str]:
        def find(module: torch.nn.Module) -> str:
            number = after.get(prefix, 0)
            while hasattr(module, name := f"{prefix}{number}"):
                number += 1
            after[prefix] = number + 1
            return name

        return find

    module.get_new_attr_name_with_prefix = quick
    try:
        yield
    finally:
        module.get_new_attr_name_with_prefix = slow
