"""ONNX's own conformance tests, as the installed package brings them, through the front end.

A case is ours if every operator in it is in the table. All of those must give the suite's results within the
suite's tolerance, except for what a static program cannot do, which is listed here with the reason.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import torch
from onnx.backend.test.loader import load_model_tests

from openneutron.diagnostics import OpenNeutronError
from openneutron.onnx.file import read_onnx
from openneutron.onnx.importer import import_model
from openneutron.onnx.narrow import opened
from openneutron.onnx.ops import BY_NAME

UNREADABLE = {"STRING", "COMPLEX"}


def _operators(nodes):
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g.node)


def _types(model):
    names = {v: k for k, v in onnx.TensorProto.DataType.items()}
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.HasField("tensor_type"):
            yield "STRING"  # sequences, maps and optional values: no tensors either
        else:
            yield names[value.type.tensor_type.elem_type]
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type in ("Cast", "Constant") and attribute.name in ("to", "value"):
                yield names[attribute.i or attribute.t.data_type]
            if attribute.name == "output_dtype":
                yield names[attribute.i]


def arrays_of(folder: Path, kind: str):
    for i in range(len(list(folder.glob(f"{kind}_*.pb")))):
        proto = onnx.TensorProto.FromString((folder / f"{kind}_{i}.pb").read_bytes())
        yield onnx.numpy_helper.to_array(proto)


# Types that NumPy lacks, by name: torch's, and the one of NumPy that has as many bits per element.
TYPES = {
    "bfloat16": (torch.bfloat16, np.int16),
    "float8_e4m3fn": (torch.float8_e4m3fn, np.uint8),
    "float8_e4m3fnuz": (torch.float8_e4m3fnuz, np.uint8),
    "float8_e5m2": (torch.float8_e5m2, np.uint8),
    "float8_e5m2fnuz": (torch.float8_e5m2fnuz, np.uint8),
    "float8_e8m0fnu": (torch.float8_e8m0fnu, np.uint8),
    "float4_e2m1fn": (torch.float4_e2m1fn_x2, np.uint8),
    "int4": (torch.int4, np.int8),
    "uint4": (torch.uint4, np.uint8),
    "int2": (torch.int2, np.int8),
    "uint2": (torch.uint2, np.uint8),
}


def _tensor(array: np.ndarray) -> torch.Tensor:
    dtype, bits = TYPES.get(array.dtype.name, (None, None))
    if dtype is None:
        return torch.from_numpy(np.array(array))
    whole = array.astype(bits) if "int" in array.dtype.name else array.view(bits)
    return torch.from_numpy(np.array(whole)).view(dtype)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The values in a type that NumPy computes in."""
    plain = opened(tensor.detach())
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _run(case, values=()):
    file = read_onnx(Path(case.model_dir) / "model.onnx")
    given = list(arrays_of(Path(case.model_dir) / "test_data_set_0", "input"))
    names = [i.name for i in file.model.graph.input]
    arrays = dict(zip(names, given, strict=False))
    fixed = {name: _tensor(arrays[name]) for name in values}
    shapes = {n: a.shape for n, a in arrays.items() if n not in fixed}
    module = import_model(file, shapes, fixed)
    with torch.no_grad():
        result = module(*[_tensor(arrays[n]) for n in names if n in arrays and n not in fixed])
    return result if isinstance(result, tuple) else (result,)


def results_of(case):
    """What the front end computes for a case, and what the suite wants.

    Inputs that a static program must know (shapes, axes, indices) are given as constants.
    """
    names = [i.name for i in onnx.load(Path(case.model_dir) / "model.onnx").graph.input]
    wanted = list(arrays_of(Path(case.model_dir) / "test_data_set_0", "output"))
    for fixed in ((), names[1:]):
        try:
            return _run(case, fixed), wanted
        except OpenNeutronError as error:
            if error.diagnostic.code != "ON905":
                raise
    return _run(case, names), wanted


def _check(case):
    results, wanted = results_of(case)
    assert len(results) >= len(wanted)
    for got, want in zip(results, wanted, strict=False):
        expected = _tensor(want)
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(array_of(got), array_of(expected), rtol=case.rtol, atol=case.atol)


RANDOM = "it draws random numbers, as numpy's generator does"
WRAPS = "the suite's expected values wrap around where the operator saturates; onnxruntime agrees with us"
EXCEPTIONS = {
    "test_training_dropout": RANDOM,
    "test_training_dropout_default": RANDOM,
    "test_training_dropout_default_mask": RANDOM,
    "test_training_dropout_mask": RANDOM,
    "test_qlinearmatmul_2D_int8_float16": WRAPS,
    "test_qlinearmatmul_2D_int8_float32": WRAPS,
    "test_qlinearmatmul_3D_int8_float16": WRAPS,
    "test_qlinearmatmul_3D_int8_float32": WRAPS,
}


def _is_ours(case) -> bool:
    model = onnx.load(Path(case.model_dir) / "model.onnx")
    known = all((d, o) in BY_NAME or o == "If" for d, o in _operators(model.graph.node))
    return known and not any(t.startswith(tuple(UNREADABLE)) for t in _types(model))


def _has_tensors(case) -> bool:
    """Whether inputs and outputs are tensors of numbers, which is all that can be given to a program."""
    return "STRING" not in _types(onnx.load(Path(case.model_dir) / "model.onnx"))


def _failure(case) -> str:
    """Why a case fails; empty if it passes."""
    try:
        _check(case)
    except OpenNeutronError as error:
        return f"{error.diagnostic.code}: {' '.join(str(error).split())[:200]}"
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


@pytest.mark.filterwarnings("ignore")
def test_the_suites_node_cases(record_property):
    """One test for all cases: there are over a thousand, and each takes milliseconds."""
    cases = load_model_tests(kind="node")
    ours = [case for case in cases if _is_ours(case)]
    failures = {case.name: reason for case in ours if (reason := _failure(case))}
    # Operators outside of the table may be defined by others; the rest is refused, with a code.
    others = {case.name: _failure(case) for case in cases if case not in ours and _has_tensors(case)}
    passed = len(ours) - len(failures) + sum(not reason for reason in others.values())
    record_property("cases", len(ours))
    print(f"{len(ours) - len(failures)} of {len(ours)} cases of the table; {passed} of all {len(cases)}")
    assert set(failures) == set(EXCEPTIONS) & {case.name for case in ours}, failures
    assert len(ours) > 1100 and passed > 1200
    assert not {name: r for name, r in others.items() if r and not r.startswith("ON9")}
