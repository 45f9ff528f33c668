"""Test support: ONNX models made in a line, and onnxruntime as the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

NEWEST = 21  # what the pinned onnxruntime has kernels for


def value(name: str, shape: Sequence[Any], kind: int = TensorProto.FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Any = (),
    opset: int = NEWEST,
) -> Any:
    """A model of these nodes; `weights` is a dictionary of arrays."""
    initializers = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def save(made: Any, folder: Path, name: str = "model.onnx") -> Path:
    """Write a model."""
    path = folder / name
    onnx.save(made, path)
    return path


def run_onnxruntime(
    path: Path | str, inputs: Sequence[np.ndarray], optimize: bool = False
) -> list[np.ndarray]:
    """What onnxruntime computes; without optimization, node by node as ONNX defines them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip([i.name for i in session.get_inputs()], inputs, strict=True)))
