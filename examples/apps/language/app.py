"""Text that goes on, byte by byte, by the language model of the zoo with its cache inside."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.trained_networks import font
from examples.apps.frame import LIB, Arrays, Figures, chip_note, compiled, cost_of, on_chip, save_picture
from examples.apps.lib.chances import Dice, chances
from examples.apps.lib.draw import BLUE, INK, ORANGE, Sheet
from openneutron.models.text import calibration_texts, frames, load_texts, windows
from openneutron.models.tiny_lm import TinyLM
from openneutron.models.zoo import find_model
from openneutron.run.program import LoadedProgram, load_program

NEEDS = ("matplotlib",)  # its font
CONTEXT, TEMPERATURE = 256, 0.5  # app.c has the first too
PROMPTS = ("If the class ", "You may copy ", "The value of ", "The Licensor ")
Run = Callable[[torch.Tensor, torch.Tensor], np.ndarray]  # a byte and its position: the scores of the next
Written = list[tuple[int, float]]  # bytes, and how likely each was


def write(run: Run, prompt: bytes, count: int, seed: int, show: Callable[[str], object] = str) -> Written:
    """So many bytes more, drawn by their chances."""
    dice, text, written = Dice(seed), bytearray(prompt), []
    for frame in frames(torch.tensor(list(prompt))):
        scores = run(*frame)
    while True:
        likely = chances(scores, TEMPERATURE)
        text.append(dice.pick(likely))
        written.append((text[-1], float(likely[text[-1]])))
        show(chr(text[-1]) if 32 <= text[-1] < 127 or text[-1] == 10 else "?")
        if len(written) == count:
            return written
        scores = run(torch.tensor([[text[-1]]]), torch.tensor([len(text) - 1]))


def judge(run: Run, text: torch.Tensor) -> tuple[float, float, np.ndarray]:
    """Nats a byte of a text, how many bytes were the likeliest, and which were."""
    scores = torch.from_numpy(np.stack([run(*frame) for frame in frames(text)]))
    loss = torch.nn.functional.cross_entropy(scores[:-1], text[1:])
    likeliest = scores.argmax(1)
    return float(loss), float((likeliest[:-1] == text[1:]).double().mean()), likeliest.numpy()


def in_float(model: TinyLM) -> Run:
    """The model itself."""

    def run(byte: torch.Tensor, position: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return model(byte, position).numpy()[0, 0]

    return run


def of_program(program: LoadedProgram) -> Run:
    """The program on the simulator; where a text begins, it forgets the one before."""

    def run(byte: torch.Tensor, position: torch.Tensor) -> np.ndarray:
        if int(position) == 0:
            program.reset()
        scores: Arrays = program.run((byte, position))
        return scores[0][0, 0]

    return run


def main(out: Path, short: bool) -> Figures:
    """Compile, write, compare the losses, write on the emulated chip, draw."""
    entry = find_model("tiny_lm")
    model = entry.build(trained=True)
    assert isinstance(model, TinyLM)
    given = calibration_texts(2 if short else 4, 64 if short else CONTEXT)
    program = compiled("TinyLM", model, given, accuracy="fast" if short else "balanced")
    exact_run, run = in_float(model), of_program(load_program(program.pte))

    count, prompts = (40, PROMPTS[:2]) if short else (190, PROMPTS)
    exact, found, seconds = [], [], 0.0
    for number, prompt in enumerate(prompts, 1):
        exact.append(write(exact_run, prompt.encode(), count, number))
        print(f"\n{prompt}", end="", flush=True)
        start = time.perf_counter()
        found.append(write(run, prompt.encode(), count, number, lambda text: print(text, end="", flush=True)))
        seconds += time.perf_counter() - start
    fed = sum(len(prompt) + count - 1 for prompt in prompts)
    print(f"\n\n{fed / seconds:,.0f} bytes a second on this machine\n")

    held_out = windows(load_texts()[1], CONTEXT)
    tested = held_out[:: max(1, len(held_out) // (1 if short else 60))][: 1 if short else 60]
    pairs = [(judge(exact_run, text), judge(run, text)) for text in tested]
    losses, right = ([float(np.mean([pair[i][k] for pair in pairs])) for i in (0, 1)] for k in (0, 1))
    same = np.mean([(a == b).mean() for (_, _, a), (_, _, b) in pairs])

    ways = 2  # texts that are written on the chip
    jobs = b"".join(struct.pack("<iifI", len(p), count, TEMPERATURE, n) + p.encode()
                    for n, p in enumerate(prompts[:ways], 1))  # fmt: skip
    files = [Path(__file__).with_name("app.c"), LIB / "chances.c"]
    seen = on_chip({"tiny_lm": program.pte}, files, {"prompts.bin": jobs}, out / "chip")
    chip, note, more = None, "", {}
    if seen is not None:
        pairs_of = zip(prompts[:ways], found[:ways], strict=True)
        wanted = b"".join(prompt.encode() + bytes(byte for byte, _ in each) for prompt, each in pairs_of)
        text = seen[1]["text.out"]
        assert text == wanted, f"under QEMU: {text!r}; on the host: {wanted!r}"
        each = sum(seen[2]["instructions"].values()) / sum(seen[2]["runs"].values())
        chip, note = f"the simulator's text, letter by letter, of {ways} prompts", chip_note(seen[2])
        more = {"a byte on the emulated chip": f"{each:,.0f} instructions, all of them the Cortex-M's"}
    save_picture(draw(prompts, exact, found, losses), out / "language.png", 64)
    cost = cost_of("TinyLM, a byte", program)
    figures = f"float {right[0]:.1%}, int8 {right[1]:.1%}"
    more = {
        "bytes a second": f"{1e3 / cost.ms:,.0f} on the chip (estimated), {fed / seconds:,.0f} on the host",
        "the likeliest byte is right": f"{figures}; one and the same for both: {same:.1%}",
        **more,
    }
    task = f"nats a byte of {len(tested)} texts of {CONTEXT} bytes that trained nothing"
    return Figures(task, *losses, chip, note, [cost], more)


def draw(
    prompts: tuple[str, ...], exact: list[Written], found: list[Written], losses: list[float]
) -> Image.Image:
    """What both write, each letter as dark as it was likely."""
    columns, letter, line, gap = 52, 8, 18, 20
    blocks = [[_lines(prompt, each, columns) for each in pair]
              for prompt, *pair in zip(prompts, exact, found, strict=True)]  # fmt: skip
    heights = [max(map(len, pair)) * line + 14 for pair in blocks]
    sheet = Sheet(2 * (columns * letter + gap) + gap, sum(heights) + 44)
    for column, (name, ink, nats) in enumerate(
        (("float", BLUE, losses[0]), ("int8, on the simulator", ORANGE, losses[1]))
    ):
        x, y = gap + column * (columns * letter + gap), 40
        sheet.text(x, 10, f"{name}: {nats:.3f} nats a byte", 15, ink)
        for pair, height in zip(blocks, heights, strict=True):
            for number, letters in enumerate(pair[column]):
                for place, (character, likely) in enumerate(letters):
                    shade = tuple(round(c + (190 - c) * (1 - likely)) for c in ink) if likely >= 0 else INK
                    at = (x + place * letter, y + number * line)
                    sheet.pen.text(at, character, shade, font("DejaVuSansMono", 13))
            y += height
    return sheet.image


def _lines(prompt: str, written: Written, columns: int) -> list[list[tuple[str, float]]]:
    """Letters with how likely each was, in lines; those of the prompt have -1. Runs of blanks are one."""
    letters = [(c, -1.0) for c in prompt]
    letters += [(chr(b) if 32 < b < 127 else " " if b in b" \n" else "?", likely) for b, likely in written]
    lines: list[list[tuple[str, float]]] = [[]]
    word: list[tuple[str, float]] = []
    for character, likely in [*letters, (" ", 0.0)]:
        if character != " ":
            word.append((character, likely))
        elif word:
            if len(lines[-1]) + len(word) > columns:
                lines.append([])
            lines[-1] += [*word, (" ", 0.0)]
            word = []
    return lines
