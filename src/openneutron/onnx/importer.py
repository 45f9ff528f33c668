"""From a checked ONNX model to a graph in which all shapes are numbers and all constants computed.

The graph is run once on tensors that have shapes but no values. A node whose inputs are all constants is
computed for real instead, `Shape` always: so the arithmetic on shapes that exporters write vanishes. `If`
with a known condition is replaced by its branch, a function by its body.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from openneutron.diagnostics import OpenNeutronError, fail, nearest
from openneutron.onnx.file import OnnxFile, attributes_of, onnx_type, tensor_of
from openneutron.onnx.module import ImportedGraph, OnnxModule, Step
from openneutron.onnx.narrow import NARROW
from openneutron.onnx.ops import BY_NAME
from openneutron.onnx.shapes import Input, settle_inputs
from openneutron.onnx.spec import MICROSOFT, OLDEST_OPSET, Call, Node, OnnxOp, Store, Unsupported, execute
from openneutron.onnx.values import Dequantized, Quantized, Tensor, Value, as_array, wide_type, widened

MOST_NODES = 5_000
MOST_BYTES = 2**31  # of one tensor, computed or declared
_DOMAINS = {"ai.onnx": "", "com.microsoft": MICROSOFT, "": ""}


@dataclass
class _Scope:
    """What the names inside a graph, a branch or a function's body stand for."""

    opsets: Mapping[str, int]
    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict)
    outer: _Scope | None = None

    def find(self, name: str) -> str | None:
        """The unique name of a value that is read here."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None


def import_model(
    file: OnnxFile,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Tensor] | None = None,
    widen: bool = False,
) -> OnnxModule:
    """The model of a file as a module.

    `shapes` settles the open dimensions of inputs; `values` makes inputs constants, by their names; `widen`
    makes half precision float32.
    """
    return OnnxModule(_Importer(file, values or {}, widen).run(shapes or {}))


class _Importer:
    def __init__(self, file: OnnxFile, values: Mapping[str, Tensor], widen: bool):
        self.widen = widen
        self.where = str(file.path)
        self.model = _inlined(file)
        self.constants: dict[str, Tensor] = {**file.weights, **values}
        if widen:
            self.constants = {name: widened(tensor) for name, tensor in self.constants.items()}
        self.live: dict[str, Value] = {}
        self.steps: list[Step] = []
        self.names: set[str] = set()  # of nodes
        self.values: set[str] = set(self.constants)
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)

    def run(self, shapes: Mapping[str, Sequence[int]]) -> ImportedGraph:
        graph = self.model.graph
        scope = _Scope(_opsets(self.model.opset_import, self.where, graph.node))
        inputs = settle_inputs(graph, set(self.constants), shapes, self.where)
        if self.widen:
            inputs = [replace(given, dtype=wide_type(given.dtype)) for given in inputs]
            for given in inputs:
                _check_type(given, self.where)
        for name in self.constants:
            scope.names[name] = name
        for given in inputs:
            self._declare(given, scope)
        with _torch_is_quiet():
            self._nodes(graph.node, scope)
        outputs = [scope.find(o.name) for o in graph.output]
        if not graph.output:
            fail("ON903", self.where, "the graph has no output", "Export it again.")
        if None in outputs:
            fail("ON903", self.where, f"output '{graph.output[outputs.index(None)].name}' is never made", "")
        kept = _needed(self.steps, {str(o) for o in outputs})
        ins = tuple((i.name, i.shape, i.dtype) for i in inputs)
        names = tuple(o.name for o in graph.output)
        return ImportedGraph(ins, tuple(map(str, outputs)), names, tuple(kept), self.constants, self.widen)

    def _declare(self, given: Input, scope: _Scope) -> None:
        size = torch.empty((), dtype=given.dtype).element_size()
        for dim in given.shape:
            size *= dim
        if size > MOST_BYTES:
            fail(
                "ON907", f"{self.where}: input '{given.name}'", f"has {size} bytes", "Choose a smaller shape."
            )
        with self.fake:
            self.live[given.name] = torch.empty(given.shape, dtype=given.dtype)
        scope.names[given.name] = given.name
        self.values.add(given.name)

    # -- nodes

    def _nodes(self, nodes: Sequence[Any], scope: _Scope) -> None:
        for proto in nodes:
            if len(self.steps) > MOST_NODES:
                fail(
                    "ON907",
                    self.where,
                    f"has more than {MOST_NODES} operators that are not constants",
                    "Such a program would not fit the chip; split the model.",
                )
            try:
                node = self._node(proto, scope)
            except Unsupported as error:
                name = proto.name or (proto.output[0] if proto.output else "")
                fail(error.code, f"{self.where}: node '{name}' ({proto.op_type})", error.problem, error.hint)
            try:
                self._import(node, proto, scope)
            except Unsupported as error:
                fail(error.code, f"{self.where}: {node}", error.problem, error.hint)
            except (OpenNeutronError, RecursionError):
                raise
            except Exception as error:
                line = next((s for s in str(error).strip().splitlines() if s.strip()), type(error).__name__)
                fail(
                    "ON904",
                    f"{self.where}: {node}",
                    f"cannot be computed for inputs {self._describe(node, scope)}: {line[:200]}",
                    "The shapes do not fit, or the operator is used in a way that is not read.",
                )

    def _node(self, proto: Any, scope: _Scope) -> Node:
        base = scope.prefix + (proto.name or f"{proto.op_type}_{len(self.names)}")
        name, count = base, 0
        while name in self.names:
            count += 1
            name = f"{base}_{count}"
        self.names.add(name)
        domain = _DOMAINS.get(proto.domain, proto.domain)
        ins, outs = tuple(proto.input), tuple(proto.output)
        return Node(name, proto.op_type, domain, ins, outs, attributes_of(proto))

    def _import(self, node: Node, proto: Any, scope: _Scope) -> None:
        if node.op == "If" and not node.domain:
            return self._if(node, scope)
        op = BY_NAME.get((node.domain, node.op))
        version = _version(node, scope)
        if op is None or not op.oldest <= version <= op.newest:
            if self._expand(node, proto, scope):
                return None
            _refuse(node, op, version, scope)
        assert op is not None
        inputs = []
        for name in node.inputs:
            value = scope.find(name) if name else ""
            if value is None:
                raise Unsupported(f"it reads '{name}', which is never made", "", "ON903")
            inputs.append(value)
        while inputs and not inputs[-1]:
            inputs.pop()
        self._compute(node, op, version, inputs, scope)
        return None

    def _compute(self, node: Node, op: OnnxOp, version: int, inputs: list[str], scope: _Scope) -> None:
        statics = [as_array(self.constants[n]) if n in self.constants else None for n in inputs]
        values = [self.constants.get(n, self.live.get(n)) if n else None for n in inputs]
        derived: list[str] = []

        def keep(name: str, tensor: Tensor) -> Tensor:
            derived.append(name)
            self.constants[name] = tensor
            return tensor

        def find(name: str) -> Tensor | None:
            return self.constants.get(name) if name in derived else None

        def call() -> Call:
            return Call(node, version, values, statics, _RealStore(find, keep, self.widen))

        constant = op.fold and all(
            not n or n in self.constants or i in op.types for i, n in enumerate(inputs)
        )
        results: tuple[Any, ...] = ()
        if op.shape_only:
            results = execute(op, call())
        else:
            with self.fake, torch.no_grad():
                used = call()
                if not constant or op.name != "NonZero":  # whose size depends on the values
                    results = execute(op, used)
            _check_sizes(results)
            if constant:
                with torch.no_grad():
                    results = execute(op, call())
        outputs = self._outputs(node, scope)
        if op.shape_only or (constant and all(isinstance(r, Tensor) for r in results)):
            for name, result in zip(outputs, results, strict=False):
                if name:
                    # A view would keep all of what it is a part of in memory.
                    made = result.clone() if result._is_view() else result
                    self.constants[name] = widened(made) if self.widen else made
            return
        for name, result in zip(outputs, results, strict=False):
            if name:
                self.live[name] = result
        tensors = frozenset([*(inputs[i] for i in used.read if inputs[i] in self.constants), *derived])
        self.steps.append(Step(node, op, version, tuple(inputs), tuple(outputs), tensors))

    def _outputs(self, node: Node, scope: _Scope) -> list[str]:
        """Unique names for what a node makes."""
        outputs = []
        for name in node.outputs:
            unique, count = scope.prefix + name if name else "", 0
            while unique and unique in self.values:
                count += 1
                unique = f"{scope.prefix}{name}_{count}"
            self.values.add(unique)
            if name:
                scope.names[name] = unique
            outputs.append(unique)
        return outputs

    def _describe(self, node: Node, scope: _Scope) -> str:
        shapes = []
        for name in node.inputs:
            described = scope.find(name) if name else None
            value = None if described is None else self.constants.get(described, self.live.get(described))
            shapes.append("-" if value is None else str(list(value.shape)))
        return ", ".join(shapes) or "none"

    # -- graphs inside of nodes

    def _if(self, node: Node, scope: _Scope) -> None:
        condition = scope.find(node.inputs[0])
        if condition is None or condition not in self.constants:
            raise Unsupported(
                f"its condition '{node.inputs[0]}' is computed from the model's inputs",
                "Programs are static: a condition must be known now. Fix the input it depends on with --fix, "
                "its shape with --shape, or export the branch that is wanted.",
                "ON905",
            )
        taken = bool(self.constants[condition].reshape(-1)[0].item())
        branch = node.attributes.get("then_branch" if taken else "else_branch")
        if branch is None:
            raise Unsupported("it lacks a branch", "The file breaks ONNX's rules.", "ON903")
        inner = _Scope(scope.opsets, f"{node.name}/", outer=scope)
        for proto in branch.initializer:
            name = inner.prefix + proto.name
            tensor = tensor_of(proto, None)
            self.constants[name] = widened(tensor) if self.widen else tensor
            inner.names[proto.name] = name
            self.values.add(name)
        self._nodes(branch.node, inner)
        for name, result in zip(node.outputs, branch.output, strict=True):
            value = inner.find(result.name)
            if value is None:
                raise Unsupported(f"its branch never makes '{result.name}'", "", "ON903")
            scope.names[name] = value

    def _expand(self, node: Node, proto: Any, scope: _Scope) -> bool:
        """Replace an operator by the body that ONNX's own definition gives, if it has one."""
        if node.domain:
            return False
        schema = onnx.defs.get_schema(node.op, scope.opsets[node.domain], node.domain)
        if schema.has_function:
            body = schema.function_body
        elif schema.has_context_dependent_function:
            types = [self._type(scope.find(n)) if n else b"" for n in node.inputs]
            text = schema.get_context_dependent_function(proto.SerializeToString(), types)
            body = onnx.FunctionProto.FromString(text)
        else:
            return False
        inner = _Scope(_opsets(body.opset_import, self.where) or scope.opsets, f"{node.name}/")
        for formal, name in zip(body.input, node.inputs, strict=False):
            if name:
                inner.names[formal] = str(scope.find(name))
        given = {a.name: a for a in proto.attribute}
        defaults = {a.name: a for a in body.attribute_proto}
        defaults.update({n: a.default_value for n, a in schema.attributes.items() if a.default_value.name})
        nodes = []
        for template in body.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(template)
            del copy.attribute[:]
            for attribute in template.attribute:
                source = attribute
                if attribute.ref_attr_name:
                    attribute_value = given.get(attribute.ref_attr_name) or defaults.get(
                        attribute.ref_attr_name
                    )
                    if attribute_value is None:
                        continue
                    source = attribute_value
                added = copy.attribute.add()
                added.CopyFrom(source)
                added.name = attribute.name
            for i, name in enumerate(copy.input):
                if name and inner.find(name) is None and name in body.input:
                    copy.input[i] = ""  # an input that is not given
            nodes.append(copy)
        self._nodes(nodes, inner)
        for formal, name in zip(body.output, node.outputs, strict=False):
            if name:
                scope.names[name] = str(inner.find(formal))
        return True

    def _type(self, name: str | None) -> bytes:
        value = None if name is None else self.constants.get(name, self.live.get(name))
        if isinstance(value, Quantized | Dequantized):
            value = value.real()
        if value is None:
            return b""
        kind = onnx_type(value.dtype)
        return onnx.helper.make_tensor_type_proto(kind, list(value.shape)).SerializeToString()


@contextlib.contextmanager
def _torch_is_quiet() -> Iterator[None]:
    """What torch cannot compute is said by an exception, which is enough: it logs the traceback as well."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


class _RealStore(Store):
    """Derived constants are computed for real, also while the rest is run on shapes alone."""

    def derive(self, name: str, make: Any) -> Tensor:
        with unset_fake_temporarily(), torch.no_grad():
            return super().derive(name, make)


def _inlined(file: OnnxFile) -> Any:
    """The model with its own functions replaced by their bodies."""
    if not file.model.functions:
        return file.model
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(file.model)
    except Exception as error:
        fail(
            "ON903",
            str(file.path),
            f"its functions cannot be inlined: {str(error)[:200]}",
            "Export it again.",
        )


def _opsets(imports: Sequence[Any], where: str, nodes: Sequence[Any] = ()) -> dict[str, int]:
    versions = {_DOMAINS.get(o.domain, o.domain): int(o.version) for o in imports}
    opset = versions.setdefault("", onnx.defs.onnx_opset_version())
    if nodes and 0 < opset < OLDEST_OPSET and all(_has_not_changed(n, opset) for n in nodes):
        versions[""] = opset = OLDEST_OPSET
    if not OLDEST_OPSET <= opset <= onnx.defs.onnx_opset_version():
        newest = onnx.defs.onnx_opset_version()
        fail(
            "ON904",
            where,
            f"has opset {opset}",
            f"Opsets {OLDEST_OPSET} to {newest} are read (onnx {onnx.__version__}); "
            "onnx.version_converter.convert_version changes a model's opset.",
        )
    versions.setdefault(MICROSOFT, 1)
    return versions


def _has_not_changed(node: Any, opset: int) -> bool:
    """Whether an operator of an opset before the oldest that is read is the same in that one."""
    try:
        old, new = (onnx.defs.get_schema(node.op_type, o, node.domain) for o in (opset, OLDEST_OPSET))
    except Exception:
        return False
    return bool(old.since_version == new.since_version)


def _check_type(given: Input, where: str) -> None:
    """Weights may be narrow; what a program is given has at least 8 bits."""
    if given.dtype in NARROW:
        fail(
            "ON904",
            f"{where}: input '{given.name}'",
            f"has the type {str(given.dtype).removeprefix('torch.')}, which no program takes",
            "Weights may have it; inputs are float or integers of 8 bits and more.",
        )


def _version(node: Node, scope: _Scope) -> int:
    """The version of the operator that the model's opset means."""
    if node.domain:
        return scope.opsets.get(node.domain, 1)
    try:
        return int(onnx.defs.get_schema(node.op, scope.opsets[""], "").since_version)
    except Exception:
        hint = nearest(node.op, (name for domain, name in BY_NAME if domain == node.domain)).split(" Known")[
            0
        ]
        close = hint if hint.startswith("Did") else "docs/onnx-operators.md lists what is read."
        raise Unsupported(f"opset {scope.opsets['']} has no operator {node.op}", close) from None


def _refuse(node: Node, op: OnnxOp | None, version: int, scope: _Scope) -> None:
    title = f"{node.domain}.{node.op}" if node.domain else node.op
    if op is not None:
        raise Unsupported(
            f"version {version} of {title} (opset {scope.opsets.get(node.domain, '?')}) is not read",
            f"Versions {op.oldest} to {op.newest} are.",
        )
    names = [name for domain, name in BY_NAME if domain == node.domain] or [n for _, n in BY_NAME]
    hint = nearest(node.op, names).split(" Known")[0]
    opset = scope.opsets.get(node.domain, "?")
    raise Unsupported(
        f"{title} (opset {opset}) is not an operator that is read",
        hint if hint.startswith("Did") else "docs/onnx-operators.md lists what is read; write it with those.",
    )


def _check_sizes(results: Sequence[Any]) -> None:
    for result in results:
        tensor = result if isinstance(result, Tensor) else getattr(result, "ints", None)
        if tensor is not None and tensor.numel() * tensor.element_size() > MOST_BYTES:
            raise Unsupported(
                f"its result {list(tensor.shape)} has more than {MOST_BYTES} bytes",
                "No such tensor fits the chip; the file may be damaged.",
                "ON907",
            )


def _needed(steps: Sequence[Step], outputs: set[str]) -> list[Step]:
    """The steps that an output depends on."""
    wanted, kept = set(outputs), []
    for step in reversed(steps):
        if wanted.intersection(o for o in step.outputs if o):
            kept.append(step)
            wanted.update(step.inputs)
    return kept[::-1]
