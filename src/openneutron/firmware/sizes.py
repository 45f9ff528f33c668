"""How large a linked firmware is, kernel by kernel, read from the linker's map."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

# " .text.name 0xaddress 0xsize file"; a long name pushes the rest to the next line.
_SECTION = re.compile(r"^ (\.[\w.]+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S.*)$", re.MULTILINE)
_MEMBER = re.compile(r"libneutron\.a\((kernel|src)_(\w+)\.o\)")
_DRIVER = ("driver", "status", "default_kernels")  # what every firmware has, whatever its kernels


@dataclass(frozen=True)
class Size:
    """Bytes of one part of the image."""

    group: str  # kernel | shared by kernels | driver | application | C library
    name: str
    text: int = 0
    data: int = 0
    bss: int = 0


@dataclass(frozen=True)
class ImageSize:
    """The parts of an image; pools, stack and the program's own bytes are not code and not in it."""

    parts: tuple[Size, ...]

    @property
    def kernel_text(self) -> int:
        """Code and constants of the kernels and of what only kernels call."""
        return self._text("kernel", "shared by kernels")

    @property
    def text(self) -> int:
        """All code and constants."""
        return sum(part.text for part in self.parts)

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that are linked."""
        return tuple(part.name for part in self.parts if part.group == "kernel")

    def _text(self, *groups: str) -> int:
        return sum(part.text for part in self.parts if part.group in groups)


def read_map(path: Path) -> ImageSize:
    """The sizes in a linker map."""
    text = path.read_text()
    text = text[text.index("Linker script and memory map") :]
    parts: dict[tuple[str, str], Size] = {}
    for section, address, size, file in _SECTION.findall(text):
        column = _column(section)
        if column is None or int(address, 16) == 0 or int(size, 16) == 0:
            continue
        key = _part(file)
        part = parts.get(key) or Size(*key)
        parts[key] = replace(part, **{column: getattr(part, column) + int(size, 16)})
    order = ("kernel", "shared by kernels", "driver", "application", "C library")
    return ImageSize(tuple(sorted(parts.values(), key=lambda p: (order.index(p.group), p.name))))


def _column(section: str) -> str | None:
    kind = section.split(".")[1]
    if kind in ("text", "rodata", "vectors", "ARM"):
        return "text"
    return kind if kind in ("data", "bss") else None


def _part(file: str) -> tuple[str, str]:
    if member := _MEMBER.search(file):
        kind, name = member.groups()
        if kind == "kernel":
            return "kernel", name.upper()
        return ("driver" if name in _DRIVER else "shared by kernels"), name
    if file.endswith(")"):  # a member of another archive
        return "C library", "libc, libgcc"
    name = Path(file).stem
    return ("driver" if name == "kernel_selection" else "application"), name
