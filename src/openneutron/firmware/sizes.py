"""How large a linked firmware is, kernel by kernel, read from the linker's map."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

# " .text.name 0xaddress 0xsize file"; a long name pushes the rest to the next line.
_SECTION = re.compile(r"^ (\.[\w.]+)\s+0x([0-9a-f]+)\s+0x([0-9a-f]+) (\S.*)$", re.MULTILINE)
_OBJECT = re.compile(r"(?:^|/|\()([a-z]+)__(.+)\.o\)?$")
# Groups of objects as `toolchain.Unit` has them, and what they are called here.
_GROUPS = {
    "core": "ExecuTorch core",
    "registration": "ExecuTorch core",
    "delegate": "delegate",
    "cpu": "CPU kernel",
    "cmsisnn": "CPU kernel",
    "cpushared": "shared by CPU kernels",
}
_ORDER = ("kernel", "shared by kernels", "driver", "delegate", "CPU kernel", "shared by CPU kernels",
          "ExecuTorch core", "application", "C library")  # fmt: skip
_DRIVER = ("driver", "status", "default_kernels")  # what every firmware has, whatever its kernels


@dataclass(frozen=True)
class Size:
    """Bytes of one part of the image."""

    group: str  # of _ORDER
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

    @property
    def groups(self) -> tuple[Size, ...]:
        """Text, data and bss of every group."""
        sums = {part.group: Size(part.group, "") for part in self.parts}
        for part in self.parts:
            old = sums[part.group]
            sums[part.group] = replace(
                old, text=old.text + part.text, data=old.data + part.data, bss=old.bss + part.bss
            )
        return tuple(sums.values())

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
    return ImageSize(tuple(sorted(parts.values(), key=lambda p: (_ORDER.index(p.group), p.name))))


def _column(section: str) -> str | None:
    kind = section.split(".")[1]
    if kind in ("text", "rodata", "vectors", "ARM", "init_array"):
        return "text"
    return kind if kind in ("data", "bss") else None


def _part(file: str) -> tuple[str, str]:
    match = _OBJECT.search(file)
    if match is None:  # a member of an archive that came with the compiler
        return "C library", "libc, libm, libstdc++, libgcc"
    group, name = match.groups()
    if group == "kernel":
        return "kernel", name.upper()
    if group == "src":
        return ("driver" if name in _DRIVER else "shared by kernels"), name
    if name == "kernel_selection":
        return "driver", name
    return _GROUPS.get(group, "application"), name
