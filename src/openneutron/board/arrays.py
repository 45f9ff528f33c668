"""Arrays as a device has them in memory, and the comparison of its outputs with the host's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openneutron.diagnostics import fail
from openneutron.package.pte import TensorSpec, numpy_dtype

TOLERANCE = 1e-6  # of the largest value of a float output: C libraries differ in the last bit


@dataclass(frozen=True)
class Comparison:
    """How many values equal the host's; the largest difference of floats, relative to their largest value."""

    values: int = 0
    equal: int = 0
    worst: float = 0.0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(self.values + other.values, self.equal + other.equal, max(self.worst, other.worst))


def from_memory(raw: bytes, spec: TensorSpec | None) -> np.ndarray:
    """The array that lies in a device's memory; what is no tensor is a number of eight bytes."""
    if spec is None:
        return np.frombuffer(raw, np.int64)
    order = spec.dim_order
    inside = np.frombuffer(raw, numpy_dtype(spec)).reshape([spec.shape[d] for d in order])
    return inside.transpose([order.index(d) for d in range(len(order))])


def to_memory(array: np.ndarray, spec: TensorSpec | None) -> bytes:
    """The bytes of an array as a device wants them in memory."""
    if spec is None:
        return np.asarray(array, np.float64 if np.asarray(array).dtype.kind == "f" else np.int64).tobytes()
    return np.ascontiguousarray(array.transpose(spec.dim_order)).tobytes()


def compare_arrays(ours: np.ndarray, theirs: np.ndarray, where: str, code: str, hint: str) -> Comparison:
    """Compare an output with the host's: integers must be equal, floats within a millionth."""
    comparison = difference(ours, theirs)
    differing = comparison.values - comparison.equal
    if differing and not (theirs.dtype.kind == "f" and comparison.worst <= TOLERANCE):
        off_by = f", by up to {comparison.worst:.1e} of the largest" if comparison.worst else ""
        fail(code, where, f"{differing} of {comparison.values} values differ{off_by}", hint)
    return comparison


def difference(ours: np.ndarray, theirs: np.ndarray) -> Comparison:
    """How far an output is from the host's."""
    if ours.dtype == np.int64 and theirs.dtype.kind == "f":  # a number: only the host says which kind
        ours = ours.view(np.float64)
    ours = ours.reshape(theirs.shape)
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    worst = 0.0
    if theirs.dtype.kind == "f" and theirs.size and not same.all():
        finite = np.where(np.isfinite(theirs), np.abs(theirs), 0).max()
        with np.errstate(invalid="ignore"):
            off = np.where(same, 0.0, np.abs(ours.astype(np.float64) - theirs.astype(np.float64)))
        worst = float(np.nan_to_num(off, nan=np.inf).max() / (finite or 1.0))
    return Comparison(same.size, int(same.sum()), worst)
