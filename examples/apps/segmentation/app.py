"""Segmentation: a small U-Net, trained here on made-up pictures, says which shape a pixel belongs to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn

from examples.apps.frame import (
    LIB,
    Figures,
    chip_note,
    compiled,
    cost_of,
    on_chip,
    runner,
    save_picture,
)
from examples.apps.lib.draw import BLUE, GREEN, ORANGE, Sheet

NEEDS: tuple[str, ...] = ()
SIZE, BATCH = 64, 8  # app.c has the same size
KINDS = ("nothing", "disc", "square", "triangle")
INKS = np.array([(255, 255, 255), BLUE, ORANGE, GREEN])


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down three times and up again; what was seen on the way down is joined on the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        w = width
        self.first, self.second = block(3, w), block(w, 2 * w)
        self.third, self.last = block(2 * w, 4 * w), block(4 * w, 4 * w)
        self.up = nn.ModuleList([block(8 * w, 2 * w), block(4 * w, w), block(2 * w, w)])
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(w, len(KINDS), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, H, W) -> a score for every kind and pixel"""
        a = self.first(x)
        b = self.second(self.pool(a))
        c = self.third(self.pool(b))
        x = self.last(self.pool(c))
        for beside, up in zip((c, b, a), self.up, strict=True):
            x = up(torch.cat([self.grow(x), beside], 1))
        return self.head(x)


def picture(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Shapes on a blurred background, with noise: bytes (64, 64, 3), and the kind of every pixel."""
    ground = Image.fromarray(random.integers(96, 160, (5, 5, 3), np.uint8))
    ground = ground.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    mask = Image.new("L", (SIZE, SIZE))
    pens = ImageDraw.Draw(ground), ImageDraw.Draw(mask)
    for _ in range(int(random.integers(1, 6))):
        kind, r = int(random.integers(1, len(KINDS))), random.uniform(6, 16)
        x, y, turn = random.uniform(4, SIZE - 4), random.uniform(4, SIZE - 4), random.uniform(0, 6.28)
        ink = tuple(int(v) for v in random.choice([random.integers(0, 70), random.integers(185, 256)], 3))
        corners = {2: 4, 3: 3}.get(kind, 24)
        points = [(x + r * np.cos(turn + 6.2832 * i / corners), y + r * np.sin(turn + 6.2832 * i / corners))
                  for i in range(corners)]  # fmt: skip
        for pen, colour in zip(pens, (ink, kind), strict=True):
            pen.polygon(points, fill=colour)
    ground = ground.filter(ImageFilter.GaussianBlur(random.uniform(0, 1)))
    noisy = np.asarray(ground) + random.normal(0, random.uniform(2, 12), (SIZE, SIZE, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8), np.asarray(mask).astype(np.int64)


def as_input(pixels: np.ndarray) -> np.ndarray:
    """What the network reads: planes from -1 to 1."""
    values = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def trained(steps: int) -> UNet:
    """The network, after so many batches."""
    torch.manual_seed(0)
    random, module = np.random.default_rng(0), UNet()
    optimizer = torch.optim.AdamW(module.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        batch = [picture(random) for _ in range(BATCH)]
        inputs = torch.from_numpy(np.concatenate([as_input(p) for p, _ in batch]))
        loss = nn.functional.cross_entropy(module(inputs), torch.from_numpy(np.stack([m for _, m in batch])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    print(f"trained on {BATCH * steps} pictures: loss {loss.item():.3f}", flush=True)
    return module.eval()


def mean_iou(wanted: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The overlap of what is there and what was found, averaged over the shapes."""
    a, b = np.stack(wanted), np.stack(found)
    kinds = range(1, len(KINDS))
    return float(np.mean([((a == k) & (b == k)).sum() / max(1, ((a == k) | (b == k)).sum()) for k in kinds]))


def main(out: Path, short: bool) -> Figures:
    """Train, compile, judge unseen pictures, some on the emulated chip, draw."""
    module = trained(20 if short else 700)
    random = np.random.default_rng(1)
    given = [as_input(picture(random)[0]) for _ in range(8 if short else 32)]
    program = compiled("U-Net", module, [(torch.from_numpy(x),) for x in given])
    run = runner(program)
    tests = [picture(random) for _ in range(8 if short else 100)]
    wanted = [mask for _, mask in tests]
    with torch.no_grad():
        exact = [module(torch.from_numpy(as_input(p))).numpy()[0].argmax(0) for p, _ in tests]
    found = [run(as_input(p))[0][0].argmax(0) for p, _ in tests]

    count = 2 if short else 10
    sent = b"".join(pixels.tobytes() for pixels, _ in tests[:count])
    files = [Path(__file__).with_name("app.c"), LIB / "pictures.c"]
    seen = on_chip({"unet": program.pte}, files, {"pictures.bin": sent}, out / "chip")
    chip, note = None, ""
    if seen is not None:
        masks = np.frombuffer(seen[1]["masks.out"], np.uint8).reshape(count, SIZE, SIZE)
        same = float((masks == np.stack(found[:count])).mean())
        assert same == 1, f"{1 - same:.2%} of the pixels under QEMU are not the host's"
        chip, note = f"the simulator's masks, pixel by pixel, of {count} pictures", chip_note(seen[2])
    save_picture(draw(tests, exact, found), out / "segmentation.png")
    agree = float((np.stack(exact) == np.stack(found)).mean())
    return Figures(f"mean IoU of three shapes in {len(tests)} unseen pictures", mean_iou(wanted, exact),
                   mean_iou(wanted, found), chip, note, [cost_of("U-Net, 64 x 64", program)],
                   {"pixels of int8 as of float": f"{agree:.2%}"})  # fmt: skip


def draw(tests: list, exact: list[np.ndarray], found: list[np.ndarray]) -> Image.Image:
    """Pictures, what is there, and what was found."""
    side, shown = 128, min(6, len(tests))
    sheet = Sheet(110 + shown * (side + 8), 30 + 4 * (side + 8))
    rows = [("picture", [p for p, _ in tests]), ("truth", [INKS[m] for _, m in tests]),
            ("float", [INKS[m] for m in exact]), ("int8", [INKS[m] for m in found])]  # fmt: skip
    for row, (name, each) in enumerate(rows):
        y = 30 + row * (side + 8)
        sheet.text(100, y + side / 2, name, 16, anchor="rm")
        for column in range(shown):
            shown_one = Image.fromarray(each[column].astype(np.uint8))
            x = 110 + column * (side + 8)
            sheet.image.paste(shown_one.resize((side, side), Image.Resampling.NEAREST), (x, y))
            sheet.pen.rectangle((x, y, x + side - 1, y + side - 1), outline=(205, 209, 216))
    for column, (name, ink) in enumerate(zip(KINDS[1:], INKS[1:].tolist(), strict=True)):
        sheet.legend(110 + 120 * column, 4, [(name, tuple(ink))])
    return sheet.image
