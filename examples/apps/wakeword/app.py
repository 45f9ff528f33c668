"""A wake word, heard a frame of 20 ms at a time: temporal convolutions that remember, trained here.

The words are espeak-ng's. Speakers and sentences of the test are heard in no training, and neither are the
words of the test that are nearly the wake word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from examples.apps.frame import LIB, Figures, chip_note, compiled, cost_of, on_chip, save_picture
from examples.apps.lib.decisions import smoothed, wakes
from examples.apps.lib.draw import BLUE, GREEN, INK, ORANGE, PALE, Box, Sheet
from examples.apps.lib.recordings import Part, at_level, machine, music, recording, sentences, spoken
from examples.apps.lib.sound import RATE, Shape, log_mel
from openneutron import load_program
from openneutron.models.keywords import BANDS, KeywordTCN

NEEDS = ("espeak-ng",)
WORD = "hey neutron"
NEAR = ("hey", "neutron", "hey newton", "neutral", "hey nathan", "a new one", "hey you", "newton", "new tune",
        "the new town", "hey neighbour", "hey new friend", "day new", "they knew", "no tron", "hey you turn",
        "main route", "electron", "hey electron", "hey nolan", "say neutral", "hey robot", "okay neutron",
        "proton")  # fmt: skip
NEAR_TEST = ("hey nelson", "neutrino", "hey nurse", "a nation", "they do turn", "hey noodle", "hay in june",
             "neurone", "weigh neutrals", "hey proton", "hey monitor", "the neutron")  # fmt: skip
SHAPE = Shape(
    window=512, hop=320, bands=BANDS, low=60, high=7600
)  # app.c has the same, and the numbers below
MIDDLE, SPREAD = -40.0, 20.0  # of decibels
MEAN, REST = 6, 50  # frames
LATE = 25  # frames: after a word's end it is heard too late
KINDS = {"wake": GREEN, "near": (150, 110, 60), "speech": (130, 165, 210), "music": (150, 90, 180),
         "machine": (120, 125, 135)}  # fmt: skip
NAMES = {"wake": f'"{WORD}"', "near": "words like it", "speech": "sentences"}
MEMORY = 62  # frames that a decision looks back on


@dataclass(frozen=True)
class Heard:
    """A recording, its features and what it is made of."""

    samples: np.ndarray
    bands: np.ndarray
    parts: list[Part]

    @property
    def hours(self) -> float:
        """How long it is."""
        return len(self.samples) / RATE / 3600

    def words(self) -> list[tuple[int, int]]:
        """The frame at which each wake word begins, and the one at which it ends."""
        return [(p.begin // SHAPE.hop, -(-p.end // SHAPE.hop)) for p in self.parts if p.kind == "wake"]


def features(samples: np.ndarray) -> np.ndarray:
    """What the network reads: the bands of the 512 samples up to each frame's end, (N, 40)."""
    return (log_mel(np.pad(samples, (SHAPE.window - SHAPE.hop, 0)), SHAPE) - MIDDLE) / SPREAD


def heard(random: np.random.Generator, words: int, texts: int, held_out: bool, copies: int = 1) -> Heard:
    """Wake words among words that are near, sentences, music and machines; each said so many times."""
    near, said = (NEAR_TEST if held_out else NEAR), sentences(held_out)
    wanted = [("wake", WORD)] * words + [("near", str(w)) for w in random.choice(near, 2 * texts // 3)]
    wanted += [("speech", str(t)) for t in random.choice(said, texts)]
    sounds = spoken(random, [text for _, text in wanted], held_out)
    pairs = [(kind, sound) for (kind, _), sound in zip(wanted, sounds, strict=True)] * copies
    for make, kind in ((music, "music"), (machine, "machine")):
        pairs += [(kind, make(random, random.uniform(1, 5))) for _ in range(max(1, texts // 8) * copies)]
    pieces = [(kind, at_level(random, sound, -27, -3)) for kind, sound in pairs]
    order = random.permutation(len(pieces))
    samples, parts = recording(random, [pieces[i] for i in order], lambda: gap(random), (-70, -42))
    samples = samples[: len(samples) // SHAPE.hop * SHAPE.hop]
    return Heard(samples, features(samples), parts)


def gap(random: np.random.Generator) -> float:
    """Seconds of silence: some follow at once."""
    return random.uniform(0.02, 0.2) if random.random() < 0.3 else random.uniform(0.2, 1.5)


def targets(sound: Heard) -> tuple[np.ndarray, np.ndarray]:
    """Frame by frame: what the network is to say, and whether it matters."""
    wanted, matters = np.zeros(len(sound.bands), np.float32), np.ones(len(sound.bands), np.float32)
    for begin, end in sound.words():
        matters[(begin + end) // 2 : end + 24] = 0  # while it is said, it may be heard already
        wanted[end - 2 : end + 10] = matters[end - 2 : end + 10] = 1
    return wanted, matters


def trained(sound: Heard, epochs: int) -> KeywordTCN:
    """The network, trained on pieces of a recording through microphones of several colours."""
    torch.manual_seed(0)
    random, module = torch.Generator().manual_seed(0), KeywordTCN(labels=1)
    bands = torch.from_numpy(sound.bands)
    wanted, matters = (torch.from_numpy(each) for each in targets(sound))
    length, batch = 256 + MEMORY, 32
    steps = epochs * (len(bands) // (256 * batch))
    optimizer = torch.optim.AdamW(module.parameters(), lr=4e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    module.train()
    mean = 0.0
    for _ in range(steps):
        starts = torch.randint(0, len(bands) - length, (batch, 1), generator=random)
        places = starts + torch.arange(length)
        colour = torch.randn(batch, 1, 2, generator=random) * torch.tensor([0.15, 0.15])
        tilt = colour[..., :1] + colour[..., 1:] * torch.linspace(-1.5, 1.5, BANDS)
        said = module.over((bands[places] + tilt).transpose(1, 2))[:, MEMORY:, 0]
        each = F.binary_cross_entropy_with_logits(said, wanted[places[:, MEMORY:]], reduction="none")
        loss = (each * matters[places[:, MEMORY:]]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        mean = 0.98 * mean + 0.02 * loss.item()
    print(
        f"trained on {sound.hours:.1f} hours, {len(sound.words())} of them the wake word: {mean:.5f}",
        flush=True,
    )
    return module.eval()


def in_float(module: KeywordTCN, bands: np.ndarray) -> np.ndarray:
    """The score of each frame."""
    with torch.no_grad():
        return module.over(torch.from_numpy(bands.T[None]))[0, :, 0].numpy()


def in_int8(pte: bytes, bands: np.ndarray) -> np.ndarray:
    """The same on the simulator, from the start of a stream."""
    loaded = load_program(pte)
    return np.float32([loaded.run([row])[0].item() for row in bands[:, None, :, None]])


@dataclass(frozen=True)
class Judged:
    """How many wake words were heard, and how often one was heard where none was."""

    heard: float
    alarms: float  # an hour


def judge(sound: Heard, frames: Sequence[int]) -> Judged:
    """What was heard against what was said."""
    words, alarm = sound.words(), np.ones(len(frames), bool)
    found = 0
    for begin, end in words:
        inside = [i for i, frame in enumerate(frames) if begin < frame <= end + LATE]
        found += bool(inside)
        alarm[inside] = False
    return Judged(found / len(words), float(alarm.sum()) / sound.hours)


def best_threshold(sound: Heard, scores: np.ndarray) -> float:
    """The lowest, in quarters, at which nothing is heard that was not said."""
    steps = np.arange(-4, 10, 0.25).tolist()
    quiet = (step for step in steps if judge(sound, wakes(scores, step, MEAN, REST)).alarms == 0)
    return next(quiet, steps[-1])


def main(out: Path, short: bool) -> Figures:
    """Train, compile, listen, on the emulated chip too, and draw."""
    given = heard(np.random.default_rng(0), *((40, 12) if short else (1000, 600)), False, 2)
    module = trained(given, 30 if short else 14)
    own = heard(np.random.default_rng(1), *((4, 3) if short else (60, 300)), False)
    threshold = best_threshold(own, in_float(module, own.bands))

    stream = KeywordTCN(stream=True, labels=1)
    stream.load_state_dict(module.state_dict())
    starts = [max(0, begin - 100) for begin, _ in given.words()[:: 3 if short else 80]][:16]
    pieces = [torch.from_numpy(given.bands[start : start + 200, None, :, None]) for start in starts]
    program = compiled("the listener", stream.eval(), [[(row,) for row in piece] for piece in pieces])

    test = heard(np.random.default_rng(2), *((2, 2) if short else (160, 450)), True)
    scores = {"float": in_float(module, test.bands), "int8": in_int8(program.pte, test.bands)}
    found = {name: wakes(each, threshold, MEAN, REST) for name, each in scores.items()}
    judged = {name: judge(test, each) for name, each in found.items()}

    shown = heard(np.random.default_rng(4), *((2, 1) if short else (12, 6)), True)
    curves = {"float": in_float(module, shown.bands), "int8": in_int8(program.pte, shown.bands)}
    declared = "extern const float threshold;\n"
    (out / "threshold.c").write_text(f"{declared}const float threshold = {threshold}f;\n")
    sources = [Path(__file__).with_name("app.c"), out / "threshold.c", LIB / "decisions.c", LIB / "sound.c"]
    seen = on_chip({"listener": program.pte}, sources, {"samples.bin": shown.samples.tobytes()}, out / "chip")
    chip, note = None, ""
    if seen is not None:
        chip, note = same_on_chip(seen[1], curves["int8"], threshold), chip_note(seen[2])
    on_both = "int8, on the simulator" + (" and on the emulated chip" if seen is not None else "")
    save_picture(draw(shown, curves, test, scores, threshold, on_both), out / "wakeword.png")
    alarms = ", ".join(f"{name} {each.alarms:.1f}" for name, each in judged.items())
    same = sum(any(abs(a - b) <= LATE for b in found["int8"]) for a in found["float"])
    more = {f"false alarms an hour, in {test.hours:.1f} hours of speech, music and machines": alarms,
            "words and alarms of float that int8 has too": f"{same} of {len(found['float'])}"}  # fmt: skip
    task = f"wake words heard, of {len(test.words())} by unheard speakers, at a threshold of {threshold}"
    costs = [cost_of("the listener, a frame of 20 ms", program)]
    values = [each.heard for each in judged.values()]
    return Figures(task, values[0], values[1], chip, note, costs, more, "%")


def same_on_chip(wrote: dict[str, bytes], exact: np.ndarray, threshold: float) -> str:
    """Whether the chip heard the simulator's words, and how far its scores are off."""
    scores = np.frombuffer(wrote["scores.out"], np.float32)
    words = np.frombuffer(wrote["words.out"], np.int32)
    expected = wakes(exact, threshold, MEAN, REST)
    assert words.tolist() == expected, f"under QEMU words at {words}, on the host at {expected}"
    off = float(np.sqrt(((scores - exact) ** 2).mean()) / exact.std())
    assert off < 0.02, f"scores under QEMU are {off:.1%} off the host's"
    seconds = len(exact) * SHAPE.hop / RATE
    return f"the simulator's {len(words)} words, to the frame, in {seconds:.0f} seconds; scores {off:.2%} off"


# --------------------------------------------------------------------------------------------------
# The picture


def draw(
    shown: Heard, curves: dict[str, np.ndarray], test: Heard, scores: dict[str, np.ndarray],
    threshold: float, int8: str,
) -> Image.Image:  # fmt: skip
    """A recording with its scores, and what other thresholds would have done on the long one."""
    sheet, x0, x1 = Sheet(1000, 690), 108, 966
    count = min(len(shown.bands), 30 * RATE // SHAPE.hop)
    across = (x1 - x0) / count
    labels = {"what is there": 30, "40 mel bands": 122, "score": 282, "float": 381, "int8": 409}
    for text, y in labels.items():
        sheet.text(x0 - 10, y, text, 14, INK, "rm")
    for part in shown.parts:
        left = x0 + part.begin / SHAPE.hop * across
        if left < x1:
            sheet.pen.rectangle(
                (left, 20, min(x1, x0 + part.end / SHAPE.hop * across), 40), fill=KINDS[part.kind]
            )
    sheet.map((x0, 52, x1, 192), shown.bands[:count].T, -1.6, 1.8)
    chart = (x0, 212, x1, 352)
    sheet.frame(chart)
    low, high = -12.0, 12.0
    for value in (low, high):
        y = chart[3] - (value - low) / (high - low) * (chart[3] - chart[1])
        sheet.text(x1 + 4, y, f"{value:g}", 12, INK, "lm")
    for name, ink, width in (("float", BLUE, 3), ("int8", ORANGE, 1)):
        mean = np.maximum(low, smoothed(curves[name], MEAN)[:count] / MEAN)
        sheet.curve(chart, (np.arange(count) + 0.5) / count, mean, ink, low, high, width)
    y = chart[3] - (threshold - low) / (high - low) * (chart[3] - chart[1])
    sheet.pen.line((x0, y, x1, y), fill=GREEN)
    sheet.text(x1 + 4, y, f"{threshold:g}", 12, GREEN, "lm")
    for row, (name, ink) in enumerate((("float", BLUE), ("int8", ORANGE))):
        y = 372 + 28 * row
        sheet.pen.rectangle((x0, y, x1, y + 18), outline=PALE)
        for frame in wakes(curves[name][:count], threshold, MEAN, REST):
            x = x0 + frame * across
            sheet.pen.polygon([(x, y + 1), (x + 7, y + 17), (x - 7, y + 17)], fill=ink)
    for second in range(0, count * SHAPE.hop // RATE + 1, 5):
        x = x0 + second * RATE / SHAPE.hop * across
        sheet.pen.line((x, 426, x, 432), fill=INK)
        sheet.text(x, 436, f"{second} s", 13, INK, "ma")
    trade(sheet, (x0, 500, 520, 640), test, scores, threshold)
    for number, (name, ink) in enumerate(KINDS.items()):
        sheet.legend(600 + 190 * (number % 2), 500 + 24 * (number // 2), [(NAMES.get(name, name), ink)])
    sheet.legend(600, 590, [("float", BLUE), (int8, ORANGE), ("threshold", GREEN)])
    return sheet.image


def trade(sheet: Sheet, box: Box, test: Heard, scores: dict[str, np.ndarray], threshold: float) -> None:
    """Words missed against false alarms, threshold by threshold."""
    most, worst = 6.0, 0.15
    sheet.frame(box, f"words missed, by false alarms an hour ({test.hours:.1f} hours)")
    for part in range(4):
        y, x = box[3] - part / 3 * (box[3] - box[1]), box[0] + part / 3 * (box[2] - box[0])
        sheet.text(box[0] - 8, y, f"{part / 3 * worst:.0%}", 12, INK, "rm")
        sheet.text(x, box[3] + 6, f"{part / 3 * most:g}", 12, INK, "ma")
    for name, ink, width in (("float", BLUE, 5), ("int8", ORANGE, 2)):
        steps = np.arange(threshold - 6, threshold + 4, 0.25)
        points = [judge(test, wakes(scores[name], step, MEAN, REST)) for step in steps.tolist()]
        near = [p for p in points if p.alarms <= most]
        alarms = np.array([p.alarms / most for p in near])
        sheet.curve(box, alarms, np.array([1 - p.heard for p in near]), ink, 0, worst, width)
        at = judge(test, wakes(scores[name], threshold, MEAN, REST))
        if at.alarms <= most:
            x = box[0] + at.alarms / most * (box[2] - box[0])
            y = box[3] - min(1, (1 - at.heard) / worst) * (box[3] - box[1])
            sheet.pen.ellipse((x - width, y - width, x + width, y + width), fill=ink, outline=GREEN)
