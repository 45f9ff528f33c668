"""Data sets on disk, made here in small: each is read at a model's shape."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from openneutron.diagnostics import OpenNeutronError
from openneutron.models.folders import load_folder

RNG = np.random.default_rng(0)


def test_cifar10(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = RNG.integers(0, 256, (7, 3072), np.uint8)
    for name in ("data_batch_1", "test_batch"):
        with (folder / name).open("wb") as file:
            pickle.dump({b"data": pixels, b"labels": list(range(7))}, file)
    data = load_folder(tmp_path, (1, 3, 32, 32), limit=5)
    assert data.test.inputs.shape == (5, 3, 32, 32) and data.train.labels.tolist() == [0, 1, 2, 3, 4]
    expected = pixels[:5].reshape(5, 3, 32, 32) / 127.5 - 1
    assert np.allclose(data.test.inputs.numpy(), expected, atol=1e-6)
    assert load_folder(folder, (1, 1, 16, 16)).test.inputs.shape == (7, 1, 16, 16)


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(OpenNeutronError, match="ON605"):
        load_folder(tmp_path, (1, 3, 32, 32))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    pixels = RNG.integers(0, 256, (4, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", np.arange(4, dtype=np.uint8))):
            raw = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
            name = f"{part}-{kind}-ubyte" + (".gz" if packed else "")
            (tmp_path / name).write_bytes(gzip.compress(raw) if packed else raw)
    data = load_folder(tmp_path, (1, 1, 28, 28))
    assert np.allclose(data.test.inputs[:, 0].numpy(), pixels / 127.5 - 1, atol=1e-6)
    assert data.test.labels.tolist() == [0, 1, 2, 3]


def test_npz(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 2), np.float32), labels=[1, 0, 1])
    assert load_folder(tmp_path / "a.npz", (1, 2)).test.labels.tolist() == [1, 0, 1]
    np.savez(tmp_path / "b.npz", inputs=np.zeros((3, 2)), labels=[1])
    with pytest.raises(OpenNeutronError, match="3 inputs and 1 labels"):
        load_folder(tmp_path / "b.npz", (1, 2))


def test_pictures_by_class(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(np.full((8, 8, 3), 255 * label, np.uint8)).save(tmp_path / name / f"{i}.png")
    data = load_folder(tmp_path, (1, 3, 16, 16))
    assert len(data.test) == 2 and len(data.train) == 8
    assert data.train.inputs[data.train.labels == 1].min() == 1


def test_an_empty_folder_is_a_coded_error(tmp_path):
    with pytest.raises(OpenNeutronError, match="ON605"):
        load_folder(tmp_path, (1, 3, 32, 32))
