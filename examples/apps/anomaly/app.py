"""Anomalies of a machine by its sound: MLPerf Tiny's autoencoder, trained here on a made-up fan.

The network has learnt to reconstruct the sound of a fan that is well. Of one that is not, it reconstructs
less: the squared error of its output, averaged over a clip of two seconds, says how strange the clip is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from examples.apps.frame import LIB, Figures, chip_note, compiled, cost_of, on_chip, runner, save_picture
from examples.apps.lib.draw import BLUE, INK, ORANGE, RED, Sheet
from examples.apps.lib.sound import RATE, Shape, log_mel
from openneutron.models.autoencoder import DeepAutoencoder

NEEDS: tuple[str, ...] = ()
FAULTS = ("bearing", "whistle", "rubbing", "imbalance")
SECONDS, FRAMES = 2, 5
SHAPE = Shape()  # app.c has the same
MIDDLE, SPREAD = -50.0, 20.0  # of decibels, to about -2 to 2; app.c has the same


def fan(random: np.random.Generator, fault: str = "") -> np.ndarray:
    """Two seconds of a fan in samples of 16 bits: blades, air through a housing, a slowly changing load."""
    count = SECONDS * RATE
    time = np.arange(count) / RATE
    speed = random.uniform(24, 29) * (1 + 0.01 * np.sin(2 * np.pi * random.uniform(0.2, 0.6) * time))
    turn = 2 * np.pi * np.cumsum(speed) / RATE
    blades = sum(0.3 / k * np.sin(7 * k * turn + random.uniform(0, 6.28)) for k in range(1, 7))
    shaft = 0.12 * np.sin(turn + random.uniform(0, 6.28))
    air = _filtered(random.standard_normal(count), [(420, 0.97), (1350, 0.95), (2900, 0.9)])
    load = 1 + 0.15 * np.sin(2 * np.pi * random.uniform(0.1, 0.4) * time + random.uniform(0, 6.28))
    sound = 0.55 * blades + shaft + 0.30 * air * load + 0.02 * random.standard_normal(count)
    strength = random.uniform(0.35, 1.0)
    if fault == "bearing":  # every ball that passes the flaw rings the housing
        hits = (np.diff(np.floor(3.57 * turn / (2 * np.pi)), prepend=0) > 0).astype(float)
        ring = np.exp(-np.arange(400) / 60) * np.sin(2 * np.pi * 3400 * np.arange(400) / RATE)
        sound += 0.55 * strength * np.convolve(hits, ring)[:count]
    elif fault == "whistle":  # a gap in the housing
        tone = 5200 * (1 + 0.01 * np.sin(2 * np.pi * 3 * time))
        sound += 0.05 * strength * np.sin(2 * np.pi * np.cumsum(tone) / RATE)
    elif fault == "rubbing":  # a blade that touches, once a turn
        touch = np.maximum(0, np.sin(turn)) ** 8
        sound += 0.40 * strength * touch * random.standard_normal(count)
    elif fault == "imbalance":  # the shaft shakes the housing: its harmonics, and the air with them
        sound += 0.5 * strength * sum(np.sin(k * turn) / k for k in range(1, 12)) + 0.2 * air * np.sin(turn)
    return np.clip(sound * random.uniform(0.8, 1.25) * 5000, -32768, 32767).astype(np.int16)


def _filtered(noise: np.ndarray, peaks: list[tuple[float, float]]) -> np.ndarray:
    """Noise through resonances, each a frequency and how long it rings."""
    spectrum, hertz = np.fft.rfft(noise), np.fft.rfftfreq(len(noise), 1 / RATE)
    gain = sum(1 / (1 + ((hertz - peak) / (peak * (1 - ring) * 4)) ** 2) for peak, ring in peaks)
    return np.fft.irfft(spectrum * gain, len(noise))


def vectors(samples: np.ndarray) -> np.ndarray:
    """What the network reads: five frames of bands at a time, (N, 640)."""
    bands = (log_mel(samples, SHAPE) - MIDDLE) / SPREAD
    return np.concatenate([bands[i : len(bands) - FRAMES + 1 + i] for i in range(FRAMES)], 1)


def trained(clips: int, epochs: int) -> tuple[DeepAutoencoder, np.ndarray]:
    """The network, and what it was trained on."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    given = np.concatenate([vectors(fan(random)) for _ in range(clips)])
    samples, module = torch.from_numpy(given), DeepAutoencoder()
    steps = epochs * (len(samples) // 256)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(samples))
        for start in range(0, len(samples) - 255, 256):
            batch = samples[order[start : start + 256]]
            loss = torch.nn.functional.mse_loss(module(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    print(f"trained on {clips} clips of a healthy fan: error {loss.item():.4f}", flush=True)
    return module.eval(), given


def main(out: Path, short: bool) -> Figures:
    """Train, compile, judge unheard clips, on the emulated chip too, and draw."""
    module, given = trained(24 if short else 240, 4 if short else 25)
    random = np.random.default_rng(1)
    count = 2 if short else 10
    clips = [("", fan(random)) for _ in range(count * 4)] + [
        (f, fan(random, f)) for f in FAULTS for _ in range(count)
    ]
    sick = np.array([name != "" for name, _ in clips])
    pieces = [vectors(samples) for _, samples in clips]

    picked = given[:: max(1, len(given) // 128)][:128]
    program = compiled("autoencoder", module, [(torch.from_numpy(row[None]),) for row in picked])
    run = runner(program)
    with torch.no_grad():
        exact = [module(torch.from_numpy(p)).numpy() for p in pieces]
    found = [np.concatenate([run(row[None])[0] for row in p]) for p in pieces]
    errors = {"float": [((a - b) ** 2).mean(1) for a, b in zip(exact, pieces, strict=True)],
              "int8": [((a - b) ** 2).mean(1) for a, b in zip(found, pieces, strict=True)]}  # fmt: skip
    scores = {name: np.array([e.mean() for e in each]) for name, each in errors.items()}
    auc = {name: float(roc_auc_score(sick, score)) for name, score in scores.items()}

    sounds = np.concatenate([samples for _, samples in clips]).tobytes()
    seen = on_chip({"autoencoder": program.pte}, [Path(__file__).with_name("app.c"), LIB / "sound.c"],
                   {"sounds.bin": sounds}, out / "chip")  # fmt: skip
    chip, note = None, ""
    if seen is not None:
        scores["chip"] = np.frombuffer(seen[1]["scores.out"], np.float32)
        off = float(np.abs(scores["chip"] / scores["int8"] - 1).max())
        assert off < 0.02, f"a clip's score under QEMU is {off:.1%} off the host's"
        chip = float(roc_auc_score(sick, scores["chip"]))
        note = f"{chip_note(seen[2])}; scores within {off:.2%} of the host's"
    save_picture(picture(clips, errors, scores, auc, sick), out / "anomaly.png")
    low = scores["float"][sick].min() / scores["float"][~sick].max()
    more = {"least strange fault": f"{low:.2f} times the strangest healthy clip"}
    task = f"AUC, {len(clips)} unheard clips of two seconds, half with a fault"
    costs = [cost_of("autoencoder", program)]
    return Figures(task, auc["float"], auc["int8"], chip, note, costs, more)


def picture(clips: list, errors: dict, scores: dict, auc: dict, sick: np.ndarray):
    """Two clips with their errors, and the ROC curves."""
    sheet = Sheet(1000, 470)
    last = next(i for i, (name, _) in enumerate(clips) if name == "bearing")
    top = float(max(errors["float"][last].max(), errors["int8"][last].max())) * 1.1
    for column, (number, title) in enumerate(
        ((0, "a healthy fan"), (last, "one with a flaw in its bearing"))
    ):
        x = 20 + column * 320
        box = (x, 40, x + 300, 240)
        sheet.frame(box, title)
        sheet.map(box, log_mel(clips[number][1], SHAPE).T, -70, 0)
        chart = (x, 290, x + 300, 430)
        sheet.frame(chart, "error of the reconstruction")
        for name, ink in (("float", BLUE), ("int8", ORANGE)):
            values = errors[name][number]
            sheet.curve(chart, np.linspace(0, 1, len(values)), values, ink, 0, top)
        sheet.text(x, 436, "2 seconds, 128 bands", 13, INK)
    box = (680, 40, 980, 340)
    sheet.frame(box, "false alarms against faults found")
    sheet.pen.line((box[0], box[3], box[2], box[1]), fill=(225, 228, 233))
    entries = []
    for name, ink, width in (("float", BLUE, 5), ("int8", ORANGE, 2), ("chip", RED, 1)):
        if name in scores:
            false, true, _ = roc_curve(sick, scores[name])
            sheet.curve(box, false, true, ink, 0, 1, width)
            value = float(roc_auc_score(sick, scores[name]))
            label = {"float": "float", "int8": "int8, simulator", "chip": "int8, emulated chip"}[name]
            entries.append((f"{label}: AUC {value:.4f}", ink))
    sheet.legend(680, 365, entries)
    return sheet.image
