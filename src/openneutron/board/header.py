"""The C header of the serial protocol, from its definition: `python -m openneutron.board.header --write`."""

from __future__ import annotations

import sys

from openneutron.board import frames
from openneutron.compiler.microcode.header import defines_text, write_or_check

HEADER_FILE = "runtime/generated/neutron_board.h"
COMMAND = "python -m openneutron.board.header"


def header_text() -> str:
    """The whole header."""
    rows = [f"#define NEUTRON_BOARD_SYNC_{i} 0x{byte:02X}u" for i, byte in enumerate(frames.SYNC)]
    rows.append(f"#define NEUTRON_BOARD_HELLO_VERSION {frames.HELLO_VERSION}u")
    rows.append(f"#define NEUTRON_BOARD_HELLO_BYTES {frames.HELLO.size}u /* and the core's name */")
    for kind in (frames.Command, frames.Status, frames.Code):
        rows.append("")
        rows += [f"#define NEUTRON_BOARD_{kind.__name__.upper()}_{e.name} 0x{e.value:02X}u" for e in kind]
    return defines_text("NEUTRON_BOARD_H", rows, COMMAND)


if __name__ == "__main__":
    sys.exit(write_or_check(sys.argv[1:], {HEADER_FILE: header_text()}, COMMAND))
