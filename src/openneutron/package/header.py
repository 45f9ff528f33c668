"""The C header of the payload, from its definition: `python -m openneutron.package.header --write`."""

from __future__ import annotations

import sys

from openneutron.compiler.microcode.header import defines_text, write_or_check
from openneutron.converter import stock
from openneutron.package import payload

HEADER_FILE = "runtime/generated/neutron_payload.h"
COMMAND = "python -m openneutron.package.header"


def header_text() -> str:
    """The whole header. Where sizes lie in a microcode is in its own header, as fields of NeutronHeader."""
    values = {
        "STOCK_MAGIC": f"0x{stock.MAGIC:08X}u /* of a microcode that NXP's converter made */",
        "VERSION": f"{stock.PLAIN}u /* the last byte of the payload's header */",
        "INPUTS": f"{payload.INPUTS_AT}u /* bytes of the payload's header: counts of inputs, ... */",
        "OUTPUTS": f"{payload.OUTPUTS_AT}u",
        "INPUT_ARGS": f"{payload.INPUT_ARGS_AT}u",
        "PORTS": f"{payload.PORTS_AT}u /* formats, then maps: a byte per input and output each */",
        "CHANNELS_LAST": f"{payload.CHANNELS_LAST}u /* a format: the caller's tensor is channels first */",
    }
    rows = [f"#define NEUTRON_PAYLOAD_{name} {value}" for name, value in values.items()]
    return defines_text("NEUTRON_PAYLOAD_H", rows, COMMAND)


if __name__ == "__main__":
    sys.exit(write_or_check(sys.argv[1:], {HEADER_FILE: header_text()}, COMMAND))
