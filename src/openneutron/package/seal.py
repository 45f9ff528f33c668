"""The seal: a checksum after the last byte of a .pte, so that a changed file is noticed before it is loaded.

ExecuTorch verifies the structure of a program, not its content; one flipped bit can change a result, or end
the process inside a kernel. Its loader reads only what the header names, so that the 48 bytes at the end
concern nobody else: a sealed program runs on every runtime. A seal is against damage, not against malice:
anyone can compute it. Which programs this process compiled itself, and need no rehearsal, is kept apart.
"""

from __future__ import annotations

import hashlib

from openneutron.diagnostics import fail

_MARK = b"OpenNeutron.seal"
_BYTES = len(_MARK) + hashlib.sha256().digest_size


def seal(program: bytes) -> bytes:
    """The program with its seal; sealing twice changes nothing."""
    return program if is_sealed(program) else program + _MARK + hashlib.sha256(program).digest()


_made: set[bytes] = set()


def remember(program: bytes) -> bytes:
    """Note that this process compiled the program; returns it."""
    _made.add(hashlib.sha256(program).digest())
    return program


def was_made_here(program: bytes) -> bool:
    """Whether this process compiled the program."""
    return hashlib.sha256(program).digest() in _made


def is_sealed(data: bytes) -> bool:
    """Whether a seal is there, intact or broken."""
    return data[-_BYTES:].startswith(_MARK) and len(data) > _BYTES


def check_seal(data: bytes, where: str) -> bool:
    """Whether there is a seal; a broken one is a diagnostic."""
    if not is_sealed(data):
        return False
    if hashlib.sha256(data[:-_BYTES]).digest() != data[-hashlib.sha256().digest_size :]:
        fail(
            "ON512",
            where,
            "the bytes are not those that were compiled: the seal is broken",
            "Copy the file again, or compile the model again.",
        )
    return True
