"""The oracle: LiteRT's reference kernels (`BUILTIN_REF`), which define what bit-exact means here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.litert.file import read, write
from openneutron.litert.ir import Builtin, Graph, Op

# From this sum of exponentials on, the reference kernel of an int8 SOFTMAX ends its process (LiteRT 2.3.0: a
# shift by 32 bits is asserted against). The default kernels compute it: all shares are 0 steps then.
SOFTMAX_LIMIT = 512


def wide_softmaxes(graph: Graph) -> list[Op]:
    """The int8 softmaxes over so many elements that LiteRT's reference kernels may end the process."""
    return [
        op
        for op in graph.ops
        if op.kind is Builtin.SOFTMAX
        and op.outputs[0].dtype == "int8"
        and op.outputs[0].shape[-1] >= SOFTMAX_LIMIT
    ]


class Reference:
    """A LiteRT graph loaded once into the reference interpreter, to be run many times.

    What the interpreter does not take is a ValueError or a RuntimeError.
    """

    def __init__(self, model: Graph | bytes):
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        if isinstance(model, Graph) and any(_is_fatal(op) for op in model.ops):
            raise ValueError("scales for which LiteRT ends the process")
        raw = write(model) if isinstance(model, Graph) else model
        graph = model if isinstance(model, Graph) else _graph_of(model)
        wide = wide_softmaxes(graph) if graph is not None else []
        self._softmax = wide[-1] if wide else None
        if self._softmax is not None:
            assert graph is not None
            before = graph.ops[: graph.ops.index(self._softmax)]
            self._before = Reference(Graph(graph.inputs, [self._softmax.operand(0)], before, graph.name))
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
        if self._softmax is not None:
            self._check_softmax(self._softmax, self._before.run(inputs)[0])
        for index, array in zip(self._inputs, inputs, strict=True):
            self._interpreter.set_tensor(index, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index).copy() for index in self._outputs]

    @staticmethod
    def _check_softmax(op: Op, given: np.ndarray) -> None:
        """Refuse inputs for which the reference kernel would end this process."""
        quant = op.operand(0).quant
        assert quant is not None
        below = (given.astype(np.float64) - given.max(-1, keepdims=True)) * quant.scale[0]
        largest = np.exp(below * op.options.get("beta", 1.0)).sum(-1).max()
        if largest > SOFTMAX_LIMIT - 0.1:
            fail(
                "ON306",
                f"{op.output.name} (SOFTMAX)",
                f"its {given.shape[-1]} inputs are so near to each other that the exponentials' sum is "
                f"{largest:.1f}: LiteRT's reference kernel ends the process from {SOFTMAX_LIMIT} on",
                "LiteRT's default kernels and the simulator compute it.",
            )


def run_reference(model: Graph | bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run once on the reference interpreter."""
    return Reference(model).run(inputs)


def _graph_of(model: bytes) -> Graph | None:
    """The graph of a file; None if only LiteRT itself can say what is wrong with it."""
    try:
        return read(model, "LiteRT model")
    except OpenNeutronError:
        return None


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
