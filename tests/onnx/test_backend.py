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
from openneutron.onnx.ops import BY_NAME

UNREADABLE = {"FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2", "STRING", "COMPLEX"}


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


def _arrays(folder: Path, kind: str):
    for i in range(len(list(folder.glob(f"{kind}_*.pb")))):
        proto = onnx.TensorProto.FromString((folder / f"{kind}_{i}.pb").read_bytes())
        yield onnx.numpy_helper.to_array(proto)


def _tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _run(case, values=()):
    file = read_onnx(Path(case.model_dir) / "model.onnx")
    given = list(_arrays(Path(case.model_dir) / "test_data_set_0", "input"))
    names = [i.name for i in file.model.graph.input]
    arrays = dict(zip(names, given, strict=False))
    fixed = {name: _tensor(arrays[name]) for name in values}
    shapes = {n: a.shape for n, a in arrays.items() if n not in fixed}
    module = import_model(file, shapes, fixed)
    with torch.no_grad():
        result = module(*[_tensor(arrays[n]) for n in names if n in arrays and n not in fixed])
    return result if isinstance(result, tuple) else (result,)


def _check(case):
    """Run a case; inputs that a static program must know (shapes, axes, indices) are given as constants."""
    try:
        results = _run(case)
    except OpenNeutronError as error:
        if error.diagnostic.code != "ON905":
            raise
        names = [i.name for i in onnx.load(Path(case.model_dir) / "model.onnx").graph.input]
        try:
            results = _run(case, names[1:])
        except OpenNeutronError as again:
            if again.diagnostic.code != "ON905":
                raise
            results = _run(case, names)
    wanted = list(_arrays(Path(case.model_dir) / "test_data_set_0", "output"))
    assert len(results) >= len(wanted)
    for got, want in zip(results, wanted, strict=False):
        found = (got.float() if got.dtype == torch.bfloat16 else got).detach().numpy()
        want = want.astype(np.float32) if want.dtype.name == "bfloat16" else want
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=case.rtol, atol=case.atol)


TRAINING = "it trains: programs here only infer"
WRAPS = "the suite's expected values wrap around where the operator saturates; onnxruntime agrees with us"
EXCEPTIONS = {
    "test_not_2d": "opset 1",
    "test_not_3d": "opset 1",
    "test_not_4d": "opset 1",
    "test_training_dropout": TRAINING,
    "test_training_dropout_default": TRAINING,
    "test_training_dropout_default_mask": TRAINING,
    "test_training_dropout_mask": TRAINING,
    "test_batchnorm_epsilon_training_mode": TRAINING,
    "test_batchnorm_example_training_mode": TRAINING,
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
