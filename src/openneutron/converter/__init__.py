"""Converters: LiteRT bytes in, the parts of a delegate payload out. Two of them, interchangeable.

`open` is this project's compiler; its microcode runs on OpenNeutron's firmware and simulator, never on NXP's
runtime. `eiq` is NXP's proprietary SDK, when it is installed; its microcode runs on NXP silicon.
"""

from __future__ import annotations

from openneutron.converter.protocol import ConvertedModel, Converter
from openneutron.diagnostics import fail, nearest
from openneutron.options import CONVERTERS, default_converter


def find_converter(name: str | None = None) -> Converter:
    """The converter of that name; None: the one named by OPENNEUTRON_CONVERTER, or 'open'."""
    name = default_converter() if name is None else name
    if name == "open":
        from openneutron.converter.open import OpenConverter

        return OpenConverter()
    if name == "eiq":
        from openneutron.converter.eiq import EiqConverter

        return EiqConverter()
    fail("ON104", "option converter", f"'{name}' is not a known converter", nearest(name, CONVERTERS))


__all__ = ["ConvertedModel", "Converter", "find_converter"]
