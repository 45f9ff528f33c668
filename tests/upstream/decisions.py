"""What the `eiq` limits of the operator table decide, beside what ExecuTorch's own NXP backend decides.

    python -m tests.upstream.decisions [OPERATOR ...]

Every case of the table that is not the open converter's alone is quantized for `eiq` and exported, the cases
of an operator side by side. Each program is then looked at twice: by OpenNeutron's partitioner, and by the
NXP backend of the installed ExecuTorch, unchanged, in a process of its own over `openneutron.sdk`. A case is
taken if all its operators are. Where the two differ, `DIFFER` has the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

# The operator and the case's label, or the operator alone: why OpenNeutron decides otherwise.
_TWO_D = "written as a 2-D operator before, in its own quantizer; here when it is lowered to LiteRT"
_NOTHING = "moves nothing in memory: taken within a partition, refused where it would be alone"
DIFFER: dict[str, str] = {
    "aten.conv1d.default": _TWO_D,
    "aten._adaptive_avg_pool2d.default: 1d": _TWO_D,
    "aten.view_copy.default": _NOTHING,
    "aten.squeeze_copy.dims": _NOTHING,
    "aten.unsqueeze_copy.default": _NOTHING,
    "aten.batch_norm.default": "folded into a layer there, or left; here a product and a sum in LiteRT",
    "aten.div.Tensor": "a product with the reciprocal: there in its own quantizer, here in LiteRT",
    "aten.mean.dim: all": "a mean over all dimensions in LiteRT; it knows only the form with dimensions",
    "aten.relu.default: in place": "a product with a number, which its own quantizer makes a constant",
    "aten.convolution.default: padding same": "padded outside of what is quantized there; here in LiteRT",
    "aten.conv_transpose2d.input: transposed 1d": "its check fails with an IndexError, see docs/upstream.md",
    "aten.select_copy.int": "a slice and a view in LiteRT; it has converters of these, and none of select",
    "aten.reflection_pad2d.default": "it knows the form aten.pad, not reflection_pad1d and 2d",
    "aten.clone.default: channels last": "a copy by `.to`: it has a converter of clone alone",
    "aten._softmax.default: 4d dim 1": "over channels, if a neighbour makes the tensor channels-first",
}


def main(operators: list[str]) -> int:
    """Print a line for each case that differs, then the counts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = decide(folder, operators)
        subprocess.run(
            [sys.executable, "-m", "openneutron.sdk", "-m", __spec__.name, "--theirs", str(folder)],
            check=True,
        )
        theirs = json.loads((folder / "theirs.json").read_text())
    unexplained = 0
    for case, reason in ours.items():
        if (not reason) != (not theirs[case]):
            why = DIFFER.get(case) or DIFFER.get(case.partition(": ")[0])
            unexplained += why is None
            told = {"ours": reason, "theirs": theirs[case], "why": why}
            print(case, *(f"    {who + ':':8}{what or 'taken'}" for who, what in told.items()), sep="\n")
    differ = sum((not reason) != (not theirs[case]) for case, reason in ours.items())
    taken = sum(not reason for reason in ours.values())
    equal = len(ours) - differ
    print(f"{len(ours)} cases, {taken} taken: {equal} equal, {differ} different, {unexplained} unexplained")
    return 1 if unexplained else 0


def decide(folder: Path, operators: list[str]) -> dict[str, str]:
    """Write each operator's program to the folder; for each case, what OpenNeutron refuses, or nothing."""
    from openneutron import NeutronTargetSpec, generate_neutron_compile_spec
    from openneutron.ops import TABLE
    from openneutron.ops.spec import EIQ
    from tests.lowering import Bundle, look, make_inputs, quantize

    found: dict[str, str] = {}
    target = NeutronTargetSpec("imxrt700", converter=EIQ)
    for spec in TABLE:
        if spec.open_only or (operators and spec.name not in operators):
            continue
        cases = list(spec.cases)
        cases += [c.violated_by for c in spec.requires if EIQ in c.converters and c.violated_by]
        labels = [f"{spec.name}: {case.label}" for case in cases]
        batches = [make_inputs(cases, seed) for seed in range(2)]
        quantized = quantize(Bundle(cases), batches, neutron_target_spec=target)
        torch.export.save(torch.export.export(quantized, batches[0]), folder / f"{spec.name}.pt2")
        (folder / f"{spec.name}.json").write_text(json.dumps([labels, [len(case.shapes) for case in cases]]))
        compile_spec = generate_neutron_compile_spec("imxrt700", converter=EIQ)
        rejected = look(quantized, batches[0], compile_spec).rejected
        refused = {
            entry.node: f"{entry.op}: {entry.reject.reason}"
            for entry in rejected
            if entry.reject.code != "ON206"
        }
        found |= by_case(labels, [len(case.shapes) for case in cases], refused)
    return found


def by_case(labels: list[str], arity: list[int], refused: dict[torch.fx.Node, str]) -> dict[str, str]:
    """What was refused in each case: the one whose inputs a node computes with."""
    owners = [label for label, count in zip(labels, arity, strict=True) for _ in range(count)]
    result = dict.fromkeys(labels, "")
    for node, reason in refused.items():
        for source in inputs_of(node):
            label = owners[source]
            result[label] = result[label] or reason
    return result


def inputs_of(node: torch.fx.Node) -> set[int]:
    """The numbers of the program's inputs that a node depends on."""
    inputs = [
        n
        for n in node.graph.nodes
        if n.op == "placeholder" and not n.name.startswith(("p_", "b_", "c_", "_"))
    ]
    seen, todo = set(), [node]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += current.all_input_nodes
    return {inputs.index(n) for n in seen if n in inputs}


def decide_theirs(folder: Path) -> None:
    """The same by ExecuTorch's NXP backend, for every program in the folder."""
    from executorch.backends.nxp import neutron_partitioner  # noqa: TID251
    from executorch.backends.nxp.backend.neutron_target_spec import NeutronTargetSpec  # noqa: TID251
    from executorch.backends.nxp.edge_passes.neutron_edge_pass_manager import (  # noqa: TID251
        NeutronEdgePassManager,
    )
    from executorch.backends.nxp.nxp_backend import (  # noqa: TID251
        core_aten_ops_exception_list,
        generate_neutron_compile_spec,
    )
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from executorch.exir.backend.partitioner import PartitionResult

    operators = neutron_partitioner.NeutronSupportedOperators
    asked: dict[torch.fx.Node, str] = {}
    answer = operators._is_node_supported_compute

    def listen(self, node):
        try:
            taken = answer(self, node)
        except Exception as error:  # of a check that does not expect such an operator: it is not delegated
            asked[node] = f"{node.target}: {type(error).__name__}: {error}"
            return False
        if not taken and node.op == "call_function":
            kind = neutron_partitioner.supported_ops.get(node.target)
            quantized = "" if "cluster" in node.meta else ", not quantized"
            asked[node] = f"{node.target}: {'refused' if kind else 'no converter'}{quantized}"
        return taken

    class Looks(neutron_partitioner.NeutronPartitioner.__base__):
        """Asks, and delegates nothing."""

        def __init__(self, partitioner):
            super().__init__()
            self.partitioner = partitioner

        def __getattr__(self, name):
            return getattr(self.partitioner, name)

        def ops_to_not_decompose(self, program):
            return self.partitioner.ops_to_not_decompose(program)

        def partition(self, program):
            self.partitioner.partition(program)
            result.update(by_case(labels, arity, dict(asked)))
            for node in program.graph.nodes:
                node.meta.pop("delegation_tag", None)
            return PartitionResult(program, {})

    operators._is_node_supported_compute = listen
    target, result = NeutronTargetSpec("imxrt700"), {}
    for path in sorted(folder.glob("*.pt2")):
        labels, arity = json.loads(path.with_suffix(".json").read_text())
        asked.clear()
        program = torch.export.load(path)
        preserved = [getattr(torch.ops.aten, name).default for name in ("prelu", "pad", "hardswish")]
        partitioner = neutron_partitioner.NeutronPartitioner(
            generate_neutron_compile_spec("imxrt700"), target,
            post_quantization_state_dict=program.state_dict, preserve_ops=preserved,
        )  # fmt: skip
        to_edge_transform_and_lower(
            program,
            transform_passes=NeutronEdgePassManager(),
            partitioner=[Looks(partitioner)],
            compile_config=EdgeCompileConfig(
                _check_ir_validity=False, _core_aten_ops_exception_list=core_aten_ops_exception_list
            ),
        )
    (folder / "theirs.json").write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--theirs"]:
        decide_theirs(Path(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1:]))
