"""The oracle: LiteRT's reference kernels (`BUILTIN_REF`), which define what bit-exact means here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openneutron.litert.file import write
from openneutron.litert.ir import Builtin, Graph, Op


class Reference:
    """A LiteRT graph loaded once into the reference interpreter, to be run many times.

    What the interpreter does not take is a ValueError or a RuntimeError.
    """

    def __init__(self, model: Graph | bytes):
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        if isinstance(model, Graph) and any(_is_fatal(op) for op in model.ops):
            raise ValueError("scales for which LiteRT ends the process")
        raw = write(model) if isinstance(model, Graph) else model
        # All tensors kept: when they share memory, LiteRT 2.3.0 lets a tensor that is still to be read be
        # overwritten (seen with RESHAPE in place and an op nobody reads), and the kernels are not to blame.
        self._interpreter = Interpreter(
            model_content=raw,
            experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
            experimental_preserve_all_tensors=True,
            num_threads=1,
        )
        self._interpreter.allocate_tensors()
        # Subgraph order, not the order of names that the details come in.
        self._inputs = [d["index"] for d in self._interpreter.get_input_details()]
        self._outputs = [d["index"] for d in self._interpreter.get_output_details()]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for these inputs, in the graph's order."""
        for index, array in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index).copy() for index in self._outputs]


def run_reference(model: Graph | bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run once on the reference interpreter."""
    return Reference(model).run(inputs)


def _is_fatal(op: Op) -> bool:
    """Whether LiteRT would assert on an operator's scales: on multipliers it takes to be below (above) 1."""
    operands = (*op.inputs, *op.outputs)
    scales = [t.quant.scale[0] for t in operands if t is not None and t.quant is not None]
    if op.kind is Builtin.SOFTMAX and scales:
        return float(op.options.get("beta", 1.0)) * scales[0] * 2.0**26 <= 1.0
    if len(scales) != 3 or op.kind not in (Builtin.ADD, Builtin.SUB, Builtin.SQUARED_DIFFERENCE):
        return False
    *sources, result = scales
    if not max(scales) < 2.0**60:  # it multiplies some of them as floats
        return True
    twice = 2.0 * max(sources)
    if op.kind is Builtin.SQUARED_DIFFERENCE:
        return twice**2 / (result * 2.0**14) > 0.999
    return op.kind is Builtin.ADD and twice / (result * 2.0**20) > 0.999
