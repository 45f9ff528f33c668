"""From what a network says of each frame to events. `decisions.c` does the same on a microcontroller."""

from __future__ import annotations

import numpy as np

Segment = tuple[int, int]  # the first frame, and the first behind


def speech(likely: np.ndarray, enter: float, leave: float, quiet: int, around: int) -> list[Segment]:
    """Where speech is: it begins at `enter`, and ends after `quiet` frames below `leave`.

    So many frames `around` are added at either end, as far as there are any by then.
    """
    found, began, waiting = [], -1, 0
    for frame, value in enumerate(likely.astype(np.float32) if len(likely) else ()):
        if began < 0:
            began, waiting = (frame, 0) if value >= np.float32(enter) else (-1, 0)
        elif value >= np.float32(leave):
            waiting = 0
        elif (waiting := waiting + 1) == quiet:
            found.append((max(0, began - around), min(frame + 1, frame + 1 - quiet + around)))
            began = -1
    if began >= 0:
        found.append((max(0, began - around), min(len(likely), len(likely) - waiting + around)))
    return found


def marked(segments: list[Segment], frames: int) -> np.ndarray:
    """Which frames are in a segment."""
    inside = np.zeros(frames, bool)
    for first, behind in segments:
        inside[first:behind] = True
    return inside


def smoothed(scores: np.ndarray, count: int) -> np.ndarray:
    """The sum of the last `count` scores at each frame, in the order and precision of the C; none before."""
    found = np.full(len(scores), -np.inf, np.float32)
    if len(scores) >= count:
        total = np.zeros(len(scores) - count + 1, np.float32)
        for oldest in range(count):
            total += scores[oldest : oldest + len(total)].astype(np.float32)
        found[count - 1 :] = total
    return found


def wakes(scores: np.ndarray, threshold: float, count: int, rest: int) -> list[int]:
    """The frames at which a wake word is heard.

    There the mean of the last `count` scores is at least `threshold`, and no other was heard in the last
    `rest` frames.
    """
    least = np.float32(threshold) * np.float32(count)
    found: list[int] = []
    for frame in np.flatnonzero(smoothed(scores, count) >= least).tolist():
        if not found or frame >= found[-1] + rest:
            found.append(frame)
    return found
