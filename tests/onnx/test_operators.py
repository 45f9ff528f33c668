"""Every case of the operator table against onnxruntime, and what the table says about itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx.backend.test.loader import load_model_tests

from openneutron.onnx import load_onnx
from openneutron.onnx.ops import TABLE
from tests.onnx.graphs import NEWEST, model, run_onnxruntime, save, value
from tests.onnx.test_backend import array_of, arrays_of, results_of

CASES = [(op, case) for op in TABLE for case in op.cases]


def _array(given, random):
    if isinstance(given, tuple) and given and given[0] == "positive":
        return np.abs(random.standard_normal(given[1]).astype(np.float32)) + 0.1
    if isinstance(given, tuple):
        return random.standard_normal(given).astype(np.float32)
    return np.asarray(given, np.float32) if isinstance(given, float) else np.asarray(given)


@pytest.mark.parametrize(("op", "case"), CASES, ids=[f"{op.name}: {case.label}" for op, case in CASES])
def test_onnxruntime_computes_the_same(op, case, tmp_path):
    random = np.random.default_rng(1)
    arrays = {f"x{i}": _array(a, random) for i, a in enumerate(case.inputs) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(case.inputs)]
    constants = {n: a for n, a in arrays.items() if int(n[1:]) in case.constants}
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(op.name, names, outputs, name="node", domain=op.domain, **case.attributes)
    inputs = [
        value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype))
        for n, a in arrays.items()
        if n not in constants
    ]
    kind = onnx.TensorProto.INT64 if op.name == "ArgMax" else onnx.TensorProto.FLOAT
    if op.name.startswith(("QLinear", "QGemm", "QuantizeLinear")):
        kind = onnx.TensorProto.INT8
    made = model([node], inputs, [value(o, None, kind) for o in outputs], constants, case.opset or NEWEST)
    path = save(made, tmp_path)
    given = [a for n, a in arrays.items() if n not in constants]
    wanted = run_onnxruntime(path, given)
    module = load_onnx(path)
    exported = module.export_program(tuple(map(torch.from_numpy, given))).module()
    with torch.no_grad():
        for run in (module, exported):
            got = run(*map(torch.from_numpy, given))
            for a, b in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
                # Halfway between two integers onnxruntime rounds as it happens to compute.
                near = 1 if kind == onnx.TensorProto.INT8 else 1e-5
                np.testing.assert_allclose(a.numpy().astype(float), b.astype(float), rtol=1e-4, atol=near)


DIFFERS = {"test_maxunpool_export_with_output_shape"}  # onnxruntime does not compute what the suite wants


@pytest.mark.filterwarnings("ignore")
def test_onnxruntime_computes_the_same_as_the_suite_is_read():
    """Operators without a case of their own: by one of ONNX's that onnxruntime has a kernel for."""
    left = {op.name for op in TABLE if not op.cases and not op.domain}
    for case in sorted(load_model_tests(kind="node"), key=lambda case: case.name):
        path = Path(case.model_dir) / "model.onnx"
        nodes = onnx.load(path).graph.node
        if len(nodes) != 1 or nodes[0].op_type not in left or case.name in DIFFERS or "training" in case.name:
            continue
        try:
            wanted = run_onnxruntime(path, list(arrays_of(path.parent / "test_data_set_0", "input")))
        except Exception:  # no kernel for this version or type, which is onnxruntime's affair
            continue
        for got, want in zip(results_of(case)[0], wanted, strict=False):
            np.testing.assert_allclose(array_of(got), np.asarray(want), rtol=1e-3, atol=1e-5)
        left.discard(nodes[0].op_type)
    assert not left


def test_the_newest_version_of_every_operator_is_read():
    """A new version of the package onnx shows here which operators have changed."""
    newest = {
        op.name: onnx.defs.get_schema(op.name, onnx.defs.onnx_opset_version()).since_version
        for op in TABLE
        if not op.domain and op.name not in ("Upsample", "Scatter")  # no longer in the newest opset
    }
    behind = {
        op.name: newest[op.name] for op in TABLE if newest.get(op.name, 0) > op.newest and not op.domain
    }
    assert not behind


def test_the_listing_has_every_operator():
    from openneutron.onnx.listing import markdown

    assert all(f"| {op.name} |" in markdown() for op in TABLE)
