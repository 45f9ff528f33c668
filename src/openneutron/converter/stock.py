"""The microcode words that NXP's stock runtime reads: the little of its format that is public.

Our own microcode has another magic and keeps its sizes at the same places (see `compiler.microcode.Header`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = 0x6443_4D6E
PLAIN, PROFILING = 0, 1  # payload versions: where the words after the scratch size lie

_MAGIC, _MICROCODE, _WEIGHTS, _SCRATCH = 0, 6, 7, 9
_PREFETCH = {PLAIN: 10, PROFILING: 12}
_INPUTS = {PLAIN: 11, PROFILING: 13}
_OUTPUTS = {PLAIN: 12, PROFILING: 14}
_PROFILE, _DEBUG = 10, 11  # of the profiling version only
_PROFILE_MASK = 0x7FFF_FFFF


@dataclass(frozen=True)
class StockWords:
    """Sizes and counts in a microcode, by the position rules of a payload version."""

    magic: int
    microcode_bytes: int
    weights_bytes: int
    scratch_bytes: int
    prefetch_bytes: int
    inputs: int
    outputs: int
    profile_bytes: int = 0
    debug_bytes: int = 0


def word_count(version: int) -> int:
    """How many words a microcode must have at least."""
    return _OUTPUTS[version] + 1


def read_words(microcode: bytes, version: int = PLAIN) -> StockWords:
    """The words of a microcode that is at least `word_count` words long."""
    words = struct.unpack_from(f"<{word_count(version)}I", microcode)
    profiling = version == PROFILING
    return StockWords(
        magic=words[_MAGIC],
        microcode_bytes=words[_MICROCODE],
        weights_bytes=words[_WEIGHTS],
        scratch_bytes=words[_SCRATCH],
        prefetch_bytes=words[_PREFETCH[version]],
        inputs=words[_INPUTS[version]],
        outputs=words[_OUTPUTS[version]],
        profile_bytes=words[_PROFILE] & _PROFILE_MASK if profiling else 0,
        debug_bytes=words[_DEBUG] if profiling else 0,
    )
