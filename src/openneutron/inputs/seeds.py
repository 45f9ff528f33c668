"""The seed of random inputs, as a user may give it."""

from __future__ import annotations

from openneutron.diagnostics import fail


def check_seed(seed: int) -> int:
    """The seed, which must be what every generator takes."""
    if not 0 <= seed < 2**63:
        fail("ON104", "option --seed", f"must be from 0 to 2^63 - 1 (got {seed})", "Give another number.")
    return seed
