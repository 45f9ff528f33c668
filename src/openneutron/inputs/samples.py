"""Sample inputs: from a folder or file the user names, from the zoo's data, or random."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from openneutron.diagnostics import fail
from openneutron.files import files_below
from openneutron.inputs.tensor_file import TENSORS, read_tensors
from openneutron.models.arrays import load_arrays

if TYPE_CHECKING:
    import torch

    from openneutron.models.preprocessing import Preprocessing

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp")  # the same as models.folders, without torch
ARRAYS = (".npy", ".npz")
TABLES = (*ARRAYS, *TENSORS)
Sample = tuple[Any, ...]
FRAMES = 8  # for each sample of a model that remembers nothing, if they follow one another
SHORTEST = 16  # frames: of a sequence that is cut short


def random_samples(example: Sample, count: int, seed: int = 0) -> list[Sample]:
    """Normally distributed inputs like the example; integers are drawn from the example's range.

    A single one is taken for the last of a range, because it may be an index.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)

    def draw(like: torch.Tensor) -> torch.Tensor:
        if like.is_floating_point():
            return torch.randn(like.shape, generator=generator).to(like.dtype)
        low, last = int(like.min()), int(like.max())
        if low == last:
            low, last = (0, low) if low > 0 else (low, low + 1)
        return torch.randint(low, last + 1, like.shape, generator=generator).to(like.dtype)

    return [tuple(draw(value) for value in example) for _ in range(count)]


def load_sequences(
    path: Path, example: Sample, limit: int, preprocessing: Preprocessing | None = None, follow: bool = False
) -> list[list[Sample]]:
    """Sequences of frames for a model that remembers: at most `limit` frames, if they are all alone.

    Frames of a sequence are alike, and cheap: of longer sequences there are FRAMES times as many.
    A folder in the folder is a sequence; an array may have sequences first and time second. Other samples are
    one sequence each, or with `follow` all of a file one.
    """
    folders = sorted(f for f in path.iterdir() if f.is_dir()) if path.is_dir() else []
    if folders:
        most = limit * FRAMES
        sequences = [load_samples(folder, example, most, preprocessing) for folder in folders]
    elif path.is_file() and path.suffix in TABLES and (timed := _timed(path, example)):
        sequences = timed
    else:
        samples = load_samples(path, example, limit * FRAMES if follow else limit, preprocessing)
        sequences = [samples] if follow else [[sample] for sample in samples]
    if not all(sequences):
        fail("ON605", str(path), "has a sequence without frames", "Leave it out.")
    return _shared_out(sequences, limit * (FRAMES if max(map(len, sequences)) > 1 else 1))


def _shared_out(sequences: list[list[Sample]], limit: int) -> list[list[Sample]]:
    """At most so many frames: of every sequence the first ones, as many of each as there is room for.

    Of too many sequences some are left out, not of all nearly all.
    """
    least = sum(min(len(frames), SHORTEST) for frames in sequences) / len(sequences)
    used = max(1, min(len(sequences), int(limit / least)))
    chosen = [sequences[i * len(sequences) // used] for i in range(used)]
    room, lengths = limit, [0] * used
    for done, i in enumerate(sorted(range(used), key=lambda i: len(chosen[i]))):
        lengths[i] = min(len(chosen[i]), room // (used - done))
        room -= lengths[i]
    return [frames[:length] for frames, length in zip(chosen, lengths, strict=True)]


def _timed(file: Path, example: Sample) -> list[list[Sample]]:
    """The sequences of arrays with two more dimensions than the inputs; none if they have not."""
    arrays = read_tensors(file) if file.suffix in TENSORS else read_arrays(file)
    shapes = [tuple(like.shape) for like in example]
    pairs = list(zip(arrays, shapes, strict=False))
    if len(arrays) < len(example) or not all(a.ndim == len(s) + 2 and a.shape[2:] == s for a, s in pairs):
        return []
    counts = {a.shape[:2] for a, _ in pairs}
    if len(counts) != 1:
        fail("ON605", str(file), f"arrays have {' and '.join(map(str, counts))} sequences and frames",
             "Save the same number for every input.")  # fmt: skip
    columns = [
        [_split(sequence, like, f"{file}: array {i}") for sequence in array]
        for i, (array, like) in enumerate(zip(arrays, example, strict=False))
    ]
    return [list(zip(*inputs, strict=True)) for inputs in zip(*columns, strict=True)]


def load_samples(
    path: Path, example: Sample, limit: int, preprocessing: Preprocessing | None = None
) -> list[Sample]:
    """Up to `limit` inputs from an .npz, .npy or .pt file, or from a folder of arrays or images."""
    if path.is_dir():
        files = [f for f in files_below(path) if f.suffix.lower() in (*IMAGES, *TABLES)]
    elif path.exists():
        files = [path]
    else:
        fail("ON605", str(path), "there is no such file or folder", "Check the path.")
    stream = (sample for file in files for sample in _from_file(file, example, preprocessing))
    samples = [sample for sample, _ in zip(stream, range(limit), strict=False)]
    if not samples:
        fail(
            "ON605", str(path), "there are no samples in it", f"Known: {', '.join((*TABLES, *IMAGES))} files."
        )
    return samples


FEW = 8  # samples: fewer say little about a model's ranges


def remarks_on(samples: list[Sample]) -> list[str]:
    """What is odd about calibration samples."""
    import torch

    remarks = []
    if len(samples) < FEW:
        remarks.append(f"calibrated on {len(samples)} sample(s): {4 * FEW} to 128 typical ones are better")
    floats = [[v for v in s if isinstance(v, torch.Tensor) and v.is_floating_point()] for s in samples]
    constant = [
        i for i, values in enumerate(floats) if any(v.numel() > 1 and v.min() == v.max() for v in values)
    ]
    if constant:
        remarks.append(f"{len(constant)} calibration sample(s) are constant, the first is {constant[0]}")
    if len(samples) > 1 and all(
        len(values) == len(floats[0]) and all(map(torch.equal, values, floats[0])) for values in floats[1:]
    ):
        remarks.append("all calibration samples are the same")
    return remarks


def outside(samples: list[Sample], calibration: list[Sample]) -> list[int]:
    """The samples that leave the range calibration has seen by more than a tenth of it."""
    import torch

    samples, calibration = frames_in(samples), frames_in(calibration)
    ends: dict[int, tuple[float, float]] = {}
    for sample in calibration:
        for i, value in enumerate(sample):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
                low, high = ends.get(i, (float("inf"), float("-inf")))
                ends[i] = min(low, float(value.min())), max(high, float(value.max()))
    ports = []
    for index, sample in enumerate(samples):
        for i, (low, high) in ends.items():
            room = 0.1 * (high - low)
            if float(sample[i].min()) < low - room or float(sample[i].max()) > high + room:
                ports.append(index)
                break
    return ports


def frames_in(samples: list[Any]) -> list[Sample]:
    """The samples, and those of sequences."""
    return [frame for s in samples for frame in (s if isinstance(s, list) else [s])]


def as_samples(values: Iterable[Any], limit: int) -> list[Sample]:
    """Calibration inputs as a user's function gives them: tensors or tuples of tensors."""
    pairs = zip(values, range(limit), strict=False)
    return [tuple(v) if isinstance(v, tuple | list) else (v,) for v, _ in pairs]


def _from_file(file: Path, example: Sample, preprocessing: Preprocessing | None = None) -> Iterator[Sample]:
    import torch

    from openneutron.models.preprocessing import DEFAULT

    if file.suffix.lower() in IMAGES:
        yield (torch.from_numpy((preprocessing or DEFAULT).read(file, tuple(example[0].shape))),)
        return
    arrays = read_tensors(file) if file.suffix in TENSORS else read_arrays(file)
    if len(arrays) < len(example):
        fail(
            "ON605",
            str(file),
            f"has {len(arrays)} arrays, the model takes {len(example)} inputs",
            "Save one array per input, in order: numpy.savez(file, input_0=..., input_1=...).",
        )
    columns = [
        _split(a, like, f"{file}: array {i}")
        for i, (a, like) in enumerate(zip(arrays, example, strict=False))
    ]
    yield from zip(*columns, strict=False)


def read_arrays(file: Path) -> list[np.ndarray]:
    """The arrays of an .npy or .npz file, in the order in which they were saved."""
    if file.suffix not in ARRAYS:
        fail("ON605", str(file), "is not an array file", f"Known: {', '.join(ARRAYS)}.")
    arrays = list(load_arrays(file).values())
    if not arrays:
        fail("ON605", str(file), "there are no arrays in it", "numpy.savez(file, inputs) puts some there.")
    return arrays


def _split(array: np.ndarray, like: torch.Tensor, where: str) -> list[torch.Tensor]:
    """One sample, or many along the first dimension."""
    from openneutron.tensors import from_numpy, plain

    shape = tuple(like.shape)
    if array.shape == shape:
        parts = array[None]
    elif array.shape[1:] == shape:
        parts = array
    elif shape[:1] == (1,) and array.shape[1:] == shape[1:]:
        parts = array[:, None]
    elif shape[:1] == (1,) and array.shape == shape[1:]:
        parts = array[None, None]
    else:
        fail(
            "ON605",
            where,
            f"has the shape {list(array.shape)}, an input is {list(shape)}",
            "Resize it first.",
        )
    if array.dtype.kind not in "biuf":
        fail("ON605", where, f"has the type {array.dtype}", "Save numbers.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        fail(
            "ON605",
            where,
            "holds NaN or infinity, which have no range",
            "Leave such samples out.",
        )
    return [plain(from_numpy(part).to(like.dtype)) for part in parts]
