"""Boxes of YOLO's outputs: decoding and non-maximum suppression, in single precision as `boxes.c` has it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST = 256  # candidates that are looked at; boxes.c has the same


@dataclass(frozen=True)
class Found:
    """A box by its corners, what is in it, and how sure that is."""

    left: float
    top: float
    right: float
    bottom: float
    score: float
    kind: int

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return self.left, self.top, self.right, self.bottom


def decode(output: np.ndarray, least: float) -> list[Found]:
    """Of (4 + kinds, anchors), middles and sizes first, the boxes with their likeliest kind, best first."""
    scores, kinds = output[4:].max(0), output[4:].argmax(0)
    good = np.flatnonzero(scores >= np.float32(least))
    good = good[np.argsort(-scores[good], kind="stable")][:MOST]
    x, y, w, h = output[:4, good]
    half = np.float32(0.5)
    sides = np.stack([x - w * half, y - h * half, x + w * half, y + h * half], 1)
    return [
        Found(*map(float, side), float(scores[i]), int(kinds[i])) for side, i in zip(sides, good, strict=True)
    ]


def iou(a: Found, b: Found) -> float:
    """Overlap of two boxes."""
    f = np.float32
    w = max(min(f(a.right), f(b.right)) - max(f(a.left), f(b.left)), f(0))
    h = max(min(f(a.bottom), f(b.bottom)) - max(f(a.top), f(b.top)), f(0))
    areas = [(f(o.right) - f(o.left)) * (f(o.bottom) - f(o.top)) for o in (a, b)]
    union = areas[0] + areas[1] - w * h
    return float(w * h / union) if union > 0 else 0.0


def suppress(boxes: list[Found], overlap: float) -> list[Found]:
    """The best boxes, without those of a kind that overlap a better one."""
    kept: list[Found] = []
    for box in boxes:
        if all(box.kind != other.kind or iou(box, other) < np.float32(overlap) for other in kept):
            kept.append(box)
    return kept


def f1(wanted: list[list[Found]], found: list[list[Found]]) -> float:
    """Twice the boxes that are right, of all there are and all that were found; at an overlap of half."""
    right = total = 0
    for there, boxes in zip(wanted, found, strict=True):
        left = list(there)
        total += len(there) + len(boxes)
        for box in boxes:
            best = max(left, key=lambda other, box=box: iou(box, other), default=None)
            if best is not None and iou(box, best) >= 0.5:
                left.remove(best)
                right += 2
    return right / total if total else 1.0
