"""The first stage: the model as torch.export gives it, never the one the caller holds."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import Any, NoReturn

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from openneutron.diagnostics import OpenNeutronError, fail
from openneutron.environment.stopwatch import EXPORT, stage
from openneutron.fast_export.lift import lift
from openneutron.fast_export.recurrent_shapes import shapes_of_few_steps
from openneutron.fx import copy_graph, rename_reserved
from openneutron.quantize.stateful import assignments_written, with_own_buffers
from openneutron.tensors import is_plain, plain_inputs

Inputs = tuple[Any, ...]
Model = torch.nn.Module | ExportedProgram


def export_model(module: Model, example_inputs: Any, dynamic_shapes: Any = None) -> ExportedProgram:
    """The model as torch.export gives it; of an exported one a program of its own, which may be changed."""
    inputs = _distinct(plain_inputs(as_tuple(example_inputs)))
    if isinstance(module, ExportedProgram):
        return with_own_buffers(_with_plain_results(_own(rename_reserved(module))))
    with stage(EXPORT):
        # A module that knows better names for its nodes than torch.export gives them exports itself.
        export = getattr(module, "export_program", None)
        lifted = lift(module, inputs) if isinstance(module, GraphModule) and dynamic_shapes is None else None
        exported = lifted or (_export(module, inputs, dynamic_shapes) if export is None else export(inputs))
        return with_own_buffers(_with_plain_results(rename_reserved(exported)))


def _distinct(inputs: Inputs) -> Inputs:
    """The same inputs, none of them the same object: torch.export would take what is given twice for one."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        again = isinstance(value, torch.Tensor) and id(value) in seen
        seen.add(id(value))
        return value.clone() if again else value

    return pytree.tree_map(own, inputs)


def as_tuple(inputs: Any) -> Inputs:
    """Inputs as a tuple; one that is not in a tuple or list is alone."""
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def dynamic_shapes_of(program: ExportedProgram) -> Any:
    """The dimensions of a program's inputs that have no fixed size, as torch.export takes them, or None."""
    dims: dict[Any, Any] = {}
    leaves: list[Any] = []
    for value in _input_values(program):
        shape: Any = value.shape if isinstance(value, torch.Tensor) else ()
        found = {i: _dim(d.node.expr, program, dims) for i, d in enumerate(shape) if not isinstance(d, int)}
        leaves.append(found or None)
    if not any(leaves):
        return None
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return {**dict(zip(_names(program), args, strict=False)), **kwargs} if kwargs else tuple(args)


def _own(program: ExportedProgram) -> ExportedProgram:
    """The same program, of which nothing is shared that later stages change.

    What is assumed about a dimension without a number is noted where the caller's program would see it, and
    inputs that lie in memory in an odd way would stay so: such a program is exported anew.
    """
    dynamic = dynamic_shapes_of(program)
    inputs = [v for v in _input_values(program) if isinstance(v, torch.Tensor)]
    if (dynamic is None and all(map(is_plain, inputs))) or program.example_inputs is None:
        return copy_graph(program)
    args, kwargs = program.example_inputs
    with stage(EXPORT):
        return _export(program.module(check_guards=False), plain_inputs(args), dynamic, plain_inputs(kwargs))


def _with_plain_results(program: ExportedProgram) -> ExportedProgram:
    """Tuples in the place of structures that ExecuTorch cannot write down: a program's results are a list."""
    root = program.module_call_graph[0]
    if root.signature is None:
        return program
    try:
        pytree.treespec_dumps(root.signature.out_spec)
    except NotImplementedError:  # so torch says of torch.return_types.max, NamedTuples, classes of the user's
        plain = pytree.tree_structure(_as_tuples(root.signature.out_spec))
        signature = dataclasses.replace(root.signature, out_spec=plain)
        program._module_call_graph = [
            dataclasses.replace(root, signature=signature), *program.module_call_graph[1:]
        ]  # fmt: skip
    return program


def _as_tuples(spec: Any) -> Any:
    return 0 if spec.is_leaf() else tuple(map(_as_tuples, spec.children()))


def check_results(program: ExportedProgram) -> None:
    """Refuse a program that ExecuTorch cannot write: one that returns no tensor, or returns text."""
    found = pytree.tree_leaves(program.graph.output_node().args[0])
    for number, value in enumerate(found):
        if not isinstance(value, Node | int | float | NoneType):
            fail("ON213", f"output {number}", f"is {value!r}, which a program cannot return",
                 "Return tensors and numbers.")  # fmt: skip
    if not any(isinstance(value, Node) for value in found):
        fail("ON213", "outputs", "the model returns no tensor", "Return what it computes.")


def _export(module: Any, args: Inputs, dynamic_shapes: Any, kwargs: Any = None) -> ExportedProgram:
    def export() -> ExportedProgram:
        with shapes_of_few_steps(), assignments_written(module):
            return torch.export.export(module, args, kwargs or {}, dynamic_shapes=dynamic_shapes)

    try:
        try:
            return export()
        except RuntimeError as error:
            if "inplace" not in str(error) and "in-place" not in str(error):
                raise
            with torch.no_grad():  # some writes only training forbids
                return export()
    except torch._dynamo.exc.UserError as error:
        if dynamic_shapes is None:
            _refuse(error)
        fail(
            "ON205",
            "export",
            f"a dimension that is to be dynamic is not: {str(error).strip().splitlines()[0]}",
            "Export the model without dynamic_shapes: the NPU computes on static shapes only.",
        )
    except OpenNeutronError:
        raise
    except Exception as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    lines = str(error).strip().splitlines() or ["no message"]
    hint = "The error above this one says where; torch.export.export(model, inputs) shows it alone."
    fail("ON212", "export", f"{type(error).__name__}: {lines[0]}", hint)


def _input_values(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.input_specs
    users = {s.arg.name for s in specs if s.kind is InputKind.USER_INPUT and hasattr(s.arg, "name")}
    found = {n.name: n.meta.get("val") for n in program.graph.find_nodes(op="placeholder") if n.name in users}
    return [found.get(getattr(s.arg, "name", "")) for s in specs if s.kind is InputKind.USER_INPUT]


def _names(program: ExportedProgram) -> list[str]:
    specs = program.graph_signature.input_specs
    return [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT and hasattr(s.arg, "name")]


def _dim(expression: Any, program: ExportedProgram, known: dict[Any, Any]) -> Any:
    """One name per symbol with the bounds the program has for it; what follows from others is found anew."""
    if not expression.is_symbol:
        return Dim.AUTO
    if expression not in known:
        bounds = program.range_constraints.get(expression)
        limits = {
            side: int(value)
            for side, value in (
                ("min", getattr(bounds, "lower", None)),
                ("max", getattr(bounds, "upper", None)),
            )
            if value is not None and getattr(value, "is_finite", True) and abs(value) < 2**31
        }
        known[expression] = Dim(f"dim_{len(known)}", **limits)
    return known[expression]
