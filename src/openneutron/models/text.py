"""Text that needs no download: the licences of a Debian system, and the manual that Python brings along."""

from __future__ import annotations

from pathlib import Path

import torch

LICENCES = Path("/usr/share/common-licenses")
_HELD_OUT = 12  # every twelfth text is not trained with


def load_texts() -> tuple[list[bytes], list[bytes]]:
    """Texts to train with and texts held out: whole ones, so that none has a part in both."""
    from pydoc_data.topics import topics

    licences = (f.read_bytes() for f in sorted(LICENCES.glob("*")) if f.is_file() and not f.is_symlink())
    texts = [*licences, *(topics[name].encode() for name in sorted(topics))]
    texts = [text for text in texts if len(text) > 500]
    held_out = texts[_HELD_OUT - 1 :: _HELD_OUT]
    return [text for i, text in enumerate(texts, 1) if i % _HELD_OUT], held_out


def windows(texts: list[bytes], length: int) -> torch.Tensor:
    """(N, length) bytes: the texts one behind the other, cut into windows."""
    joined = torch.frombuffer(bytearray(b"\n\n".join(texts)), dtype=torch.uint8).long()
    return joined[: len(joined) // length * length].view(-1, length)


def frames(text: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Bytes as a language model takes them one by one: each with its position."""
    return [(byte.view(1, 1), torch.tensor([position])) for position, byte in enumerate(text)]


def calibration_texts(count: int = 4, length: int = 256) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Windows of texts that are trained with, from everywhere, as sequences."""
    texts = windows(load_texts()[0], length)
    return [frames(text) for text in texts[:: len(texts) // count][:count]]
