"""Where somebody speaks: Silero's voice detector as a stream, with its state inside the program.

The recordings are made up: espeak-ng's speakers, and between them music, machines and noise. Neither the
speakers nor the sentences that calibrate are in the test.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.trained_networks import onnx_model, package
from examples.apps.frame import (
    LIB,
    Figures,
    chip_note,
    compiled,
    cost_of,
    on_chip,
    save_picture,
)
from examples.apps.lib.decisions import Segment, marked, speech
from examples.apps.lib.draw import BLUE, GREEN, INK, ORANGE, PALE, RED, Box, Sheet
from examples.apps.lib.recordings import Part, at_level, machine, music, recording, sentences, spoken
from examples.apps.lib.sound import RATE
from openneutron import load_program

NEEDS = ("silero_vad", "espeak-ng")
FRAME, CONTEXT = 512, 64  # app.c has the same
RULE = (0.5, 0.35, 4, 1)  # speech begins, ends; after so many frames; so many more at its ends: as in app.c
PAUSE = 10  # frames: what is silent for longer inside a sentence is no speech
KINDS = {"speech": GREEN, "music": (150, 90, 180), "machine": (120, 125, 135)}


@dataclass(frozen=True)
class Heard:
    """A recording, what it is made of, and which of its frames are speech."""

    samples: np.ndarray
    parts: list[Part]
    truth: np.ndarray


def scene(random: np.random.Generator, seconds: float, held_out: bool) -> Heard:
    """Sentences, music and machines in any order, at many levels, with silence between them."""
    count = int(seconds / 4) + 2
    texts = random.choice(sentences(held_out), (count + 1) // 2).tolist()
    pieces = [("speech", at_level(random, sound, -20, -2)) for sound in spoken(random, texts, held_out)]
    for make, kind, low, high in ((music, "music", -26, -6), (machine, "machine", -30, -12)):
        sounds = [make(random, random.uniform(1, 5)) for _ in range((count + 3) // 4)]
        pieces += [(kind, at_level(random, sound, low, high)) for sound in sounds]
    order = random.permutation(len(pieces))
    samples, parts = recording(
        random, [pieces[i] for i in order], lambda: random.uniform(0.2, 1.8), (-70, -40)
    )
    whole = min(int(seconds * RATE), len(samples)) // FRAME * FRAME
    truth = np.zeros(-(-len(samples) // FRAME), bool)
    for part in parts:
        if part.kind == "speech":
            truth |= speech_of(part, len(truth))
    return Heard(samples[:whole], parts, truth[: whole // FRAME])


def speech_of(part: Part, frames: int) -> np.ndarray:
    """The frames of a recording in which a part is loud, and its short pauses."""
    alone = np.zeros(frames * FRAME, np.float32)
    alone[part.begin : part.end] = part.sound
    level = np.sqrt((alone.reshape(-1, FRAME) ** 2).mean(1))
    (loud,) = np.nonzero(level > 0.03 * level.max())
    inside = np.zeros(frames, bool)
    for first, following in zip(loud, [*loud[1:], loud[-1]], strict=True):
        inside[first : following if following - first <= PAUSE else first + 1] = True
    inside[loud[-1]] = True
    return inside


def frames(samples: np.ndarray) -> np.ndarray:
    """What the network reads: each frame with the end of the one before, (N, 1, 576)."""
    sound = np.concatenate([np.zeros(CONTEXT, np.float32), samples.astype(np.float32) / np.float32(32768)])
    starts = np.arange(0, len(samples) - FRAME + 1, FRAME)
    return sound[starts[:, None] + np.arange(CONTEXT + FRAME)][:, None]


def in_float(module: torch.nn.Module, rows: np.ndarray) -> np.ndarray:
    """How likely each frame is speech."""
    state, found = torch.zeros(2, 1, 128), []
    with torch.no_grad():
        for row in torch.from_numpy(rows):
            likely, state = module(row, state)
            found.append(float(likely))
    return np.float32(found)


def main(out: Path, short: bool) -> Figures:
    """Compile, listen, on the emulated chip too, and draw."""
    path = package("silero_vad") / "data/silero_vad_16k_op15.onnx"
    module = onnx_model(path, {"input": (1, CONTEXT + FRAME), "state": (2, 1, 128)}, {"sr": 16000})
    random = np.random.default_rng(0)
    given = [frames(scene(random, 4 if short else 10, False).samples) for _ in range(4)]
    start = torch.zeros(2, 1, 128)
    sequences = [[(row, start) for row in torch.from_numpy(rows)] for rows in given]
    program = compiled("Silero", module, sequences, state={"stateN": "state"})

    test = scene(np.random.default_rng(1), 10 if short else 600, True)
    rows = frames(test.samples)
    loaded = load_program(program.pte)
    likely = {"float": in_float(module, rows),
              "int8": np.float32([loaded.run([row])[0].item() for row in rows])}  # fmt: skip
    found = {name: speech(values, *RULE) for name, values in likely.items()}
    spoke = {name: marked(each, len(rows)) for name, each in found.items()}
    right = {name: float((each == test.truth).mean()) for name, each in spoke.items()}

    shown = (5 if short else 40) * RATE // FRAME
    seen = on_chip({"detector": program.pte}, [Path(__file__).with_name("app.c"), LIB / "decisions.c"],
                   {"samples.bin": test.samples[: shown * FRAME].tobytes()}, out / "chip")  # fmt: skip
    chip, note = None, ""
    if seen is not None:
        on_it = np.frombuffer(seen[1]["likely.out"], np.float32)
        assert np.array_equal(on_it, likely["int8"][:shown]), "under QEMU other likelihoods than on the host"
        segments = np.frombuffer(seen[1]["segments.out"], np.int32).reshape(-1, 2)
        assert segments.tolist() == [list(s) for s in speech(on_it, *RULE)], f"under QEMU: {segments}"
        chip = f"the simulator's likelihoods and segments, to the bit, of {shown * FRAME / RATE:.0f} seconds"
        note = chip_note(seen[2])
    on_both = "int8, on the simulator" + (" and on the emulated chip" if seen is not None else "")
    save_picture(draw(test, likely, spoke, shown, on_both), out / "voice.png")
    differ = spoke["float"] != spoke["int8"]
    more = {"decisions that differ": f"{differ.sum()} of {len(rows)} frames of {1e3 * FRAME / RATE:.0f} ms"}
    for kind in KINDS:
        own = marked([(p.begin // FRAME, p.end // FRAME) for p in test.parts if p.kind == kind], len(rows))
        if own.any():
            shares = [f"{name} {each[own].mean():.1%}" for name, each in spoke.items()]
            more[f"frames with {kind} that are found to be speech"] = ", ".join(shares)
    minutes = len(rows) * FRAME / RATE / 60
    task = f"frames judged right, of {minutes:.0f} minutes of unheard speakers, music and machines"
    costs = [cost_of("Silero, a frame of 32 ms", program)]
    return Figures(task, right["float"], right["int8"], chip, note, costs, more, "%")


def draw(
    heard: Heard, likely: dict[str, np.ndarray], spoke: dict[str, np.ndarray], shown: int, int8: str
) -> Image.Image:
    """The first seconds: what is heard, how likely float and int8 find speech, and what they decide."""
    sheet, x0, x1 = Sheet(1000, 560), 108, 966
    count = shown * FRAME
    across = (x1 - x0) / count

    def label(y: float, text: str, ink: tuple = INK) -> None:
        sheet.text(x0 - 10, y, text, 14, ink, "rm")

    label(30, "what is there")
    for part in heard.parts:
        if part.begin < count:
            left, right = x0 + part.begin * across, x0 + min(part.end, count) * across
            sheet.pen.rectangle((left, 20, right, 40), fill=KINDS[part.kind])
            if right - left > 52:
                sheet.text((left + right) / 2, 30, part.kind, 13, (255, 255, 255), "mm")
    wave(sheet, (x0, 52, x1, 192), heard.samples[:count], np.repeat(heard.truth[:shown], FRAME))
    label(122, "sound")

    chart = (x0, 212, x1, 352)
    sheet.frame(chart)
    label(282, "likelihood")
    for value in (0.0, 0.5, 1.0):
        y = chart[3] - value * (chart[3] - chart[1])
        sheet.pen.line((x0, y, x1, y), fill=PALE)
        sheet.text(x1 + 4, y, f"{value:g}", 12, INK, "lm")
    places = (np.arange(shown) + 0.5) / shown
    sheet.curve(chart, places, likely["float"][:shown], BLUE, 0, 1, 3)
    sheet.curve(chart, places, likely["int8"][:shown], ORANGE, 0, 1, 1)

    rows = [("speech", heard.truth, GREEN), ("float", spoke["float"], BLUE), ("int8", spoke["int8"], ORANGE),
            ("they differ", spoke["float"] != spoke["int8"], RED)]  # fmt: skip
    for number, (name, which, ink) in enumerate(rows):
        y = 372 + number * 28
        label(y + 9, name)
        sheet.pen.rectangle((x0, y, x1, y + 18), outline=PALE)
        for first, behind in runs(which[:shown]):
            sheet.pen.rectangle(
                (x0 + first * FRAME * across, y, x0 + behind * FRAME * across, y + 18), fill=ink
            )
    for second in range(0, int(count / RATE) + 1, 5):
        x = x0 + second * RATE * across
        sheet.pen.line((x, 484, x, 490), fill=INK)
        sheet.text(x, 494, f"{second} s", 13, INK, "ma")
    for x, name, ink in (
        (0, "float", BLUE),
        (80, int8, ORANGE),
        (460, "speech", GREEN),
        *((560 + 100 * i, kind, KINDS[kind]) for i, kind in enumerate(("music", "machine"))),
    ):
        sheet.legend(x0 + x, 528, [(name, ink)])
    return sheet.image


def wave(sheet: Sheet, box: Box, samples: np.ndarray, speech_there: np.ndarray) -> None:
    """A waveform, a line a column, green where there is speech."""
    sheet.frame(box)
    edges = np.linspace(0, len(samples), box[2] - box[0] + 1).astype(int)
    middle, half = (box[1] + box[3]) / 2, (box[3] - box[1]) / 2 / max(1, np.abs(samples.astype(int)).max())
    for column, (first, behind) in enumerate(pairwise(edges.tolist())):
        low, high = (int(f(samples[first:behind])) for f in (np.min, np.max))
        ink = GREEN if speech_there[first:behind].any() else KINDS["machine"]
        x = box[0] + column
        sheet.pen.line((x, middle - high * half, x, middle - low * half), fill=ink)


def runs(which: np.ndarray) -> list[Segment]:
    """Where it is true: the first, and the first behind."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], which, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
