"""Names of observers, counted on from the last one.

torchao looks for a free one from 0 on, every time: of a long recurrent network that is most of the work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from weakref import WeakKeyDictionary

import torch

from openneutron.fast_export.shortcuts import COUNTED_NAMES, Replaced

_next: WeakKeyDictionary[torch.nn.Module, dict[str, int]] = WeakKeyDictionary()


def _counting(prefix: str) -> Callable[[torch.nn.Module], str]:
    def find(module: torch.nn.Module) -> str:
        numbers = _next.setdefault(module, defaultdict(int))
        while hasattr(module, name := f"{prefix}{numbers[prefix]}"):
            numbers[prefix] += 1
        numbers[prefix] += 1
        return name

    return find


# Inside, torchao counts on from the last name of an observer.
counted_names = Replaced(
    COUNTED_NAMES,
    (
        import_module("torch.ao.quantization.fx.prepare"),  # its package has a function of that name
        {"get_new_attr_name_with_prefix": _counting},
    ),
)
