"""Every case of the operator table against onnxruntime, and what the table says about itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from openneutron.onnx import load_onnx
from openneutron.onnx.ops import TABLE
from tests.onnx.graphs import NEWEST, model, run_onnxruntime, save, value

CASES = [(op, case) for op in TABLE for case in op.cases]


def _array(given, random):
    if isinstance(given, tuple) and given and given[0] == "positive":
        return np.abs(random.standard_normal(given[1]).astype(np.float32)) + 0.1
    if isinstance(given, tuple):
        return random.standard_normal(given).astype(np.float32)
    return np.asarray(given, np.float32) if isinstance(given, float) else given


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
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-5)


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
