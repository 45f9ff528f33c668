"""The summary of a compile as data: what `compile --json` prints and the terminal rendering reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.fx import GraphModule

from openneutron.converter.protocol import Partition
from openneutron.fx import op_name
from openneutron.litert.ir import Builtin
from openneutron.package.program import CompiledProgram
from openneutron.quantize.refine import Refined
from openneutron.report.cost_model import error_label

_FETCH = "--fetch_constants_to_sram keeps the weights in flash"
POOR_DB = 15.0  # below, a user is warned


def summarize(program: CompiledProgram, path: Path | None, accuracy: Refined | None = None) -> dict[str, Any]:
    """The figures of a compiled program; the keys of the design's contract and a few more."""
    module = program.edge.graph_module
    borders = [_border_transposes(p) for p in program.partitions]
    by_runtime = sum(
        sum((*p.lowered.input_channels_last, *p.lowered.output_channels_last)) for p in program.partitions
    )
    data = program.summary(path)
    frequency = program.target.frequency_hz
    data |= {
        "chip": program.target.chip,
        "npu": program.target.hw_version,
        "sram_bytes": program.options.sram_bytes or program.target.sram_bytes,
        "invented": program.target.invented,
        "runs_on": _runs_on(program),
        "weights_in_flash": program.options.fetch_constants_to_sram or program.target.reads_flash,
        "quantize_steps": _count(module, ".quantize_per"),
        "dequantize_steps": _count(module, ".dequantize_per"),
        "border_transposes": sum(len(transposes) for transposes in borders),
        "runtime_transposes": by_runtime,
        "transpose_cycles_estimated": sum(sum(transposes) for transposes in borders),
        "quantize_cycles_estimated": program.cycles("quantize", "dequantize"),
        "channels_last_helps": _channels_last_helps(program),
        "time_us_estimated": round(data["cycles_estimated"] / frequency * 1e6, 1),
        "estimate_label": error_label(program.target),
    }
    data["hint"] = best_hint(data)
    if accuracy is not None:
        data["accuracy"] = accuracy.as_dict()
        data["accuracy"]["warning"] = accuracy_warning(data["accuracy"])
    return data


def _runs_on(program: CompiledProgram) -> str:
    """Of a program of NXP's converter: the runtime it needs, and that nothing of it was run here."""
    if program.options.converter != "eiq" or not program.partitions:
        return ""
    return f"{program.target.runtime}; nothing was simulated: NXP's microcode runs on NXP silicon only"


def accuracy_warning(accuracy: dict[str, Any]) -> str:
    """What is lost, or far from float, and what to try next; empty if nothing is."""
    sqnr_db, samples = accuracy["output_sqnr_db"], accuracy["samples"]
    remedy = {"balanced": "--accuracy best"}.get(accuracy["plan"], "--accuracy balanced")
    if accuracy["plan"] == "best":
        remedy = "--keep-float-budget 5%, or `openneutron compare`, which names the worst layers"
    seen = f"on {samples} sample{'s' if samples != 1 else ''} kept back"
    lost = [part for part in accuracy.get("parts", ()) if part["lost"]]
    if lost:
        first = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        state = "is constant" if first["constant"] else f"is {first['sqnr_db']:.1f} dB from float"
        layer = f"; it is lost at {first['layer']}" if first["layer"] else ""
        keep = f" or --keep-float {first['layer']}" if first["layer"] else ""
        return f"{first['name']}{more} {state} {seen}: int8 has lost it{layer}. Try {remedy}{keep}."
    if sqnr_db is None or sqnr_db >= POOR_DB:
        return ""
    return f"the outputs are {sqnr_db:.1f} dB from float {seen}: int8 may be useless. Try {remedy}."


def best_hint(data: dict[str, Any]) -> str:
    """The one thing that would help most."""
    rejected = data["cpu_nodes"]
    unquantized = [r for r in rejected if r["code"] == "ON202"]
    if not data["npu_nodes"] and 2 * len(unquantized) > len(rejected):
        return (
            "Nothing runs on the NPU because nothing is quantized: compile with --quantize (from Python, "
            "give compile_model calibration inputs)."
        )
    if data["fits"] is False:
        less = "--optimise size needs less" if data["weights_in_flash"] else _FETCH
        return f"It does not fit the SRAM: {less}."
    reasons = [r for r in rejected if r["code"] not in ("ON202", "ON204", "ON206")]
    if reasons and (data["partitions"] > 1 or data["macs_cpu"]):
        first = reasons[0]
        effect = (
            f"it splits the program into {data['partitions']} partitions" if data["partitions"] > 1 else ""
        )
        if data["macs_cpu"]:
            effect = f"{_share(data['macs_cpu'], data['macs_npu'])} of the MACs are there"
        return f"{first['node']} runs on the CPU and {effect}: {first['reason']}. {first['hint']}".strip()
    savings = _border_savings(data)
    if savings and savings[0][0]:
        return savings[0][1]
    if reasons:
        return f"{reasons[0]['node']} runs on the CPU: {reasons[0]['reason']}. {reasons[0]['hint']}".strip()
    if savings:
        return savings[0][1]
    return "Nothing to mend: everything runs on the NPU."


def _border_savings(data: dict[str, Any]) -> list[tuple[int, str]]:
    """What could be saved at the borders, in cycles and words, the most first; 0 if they are unknown."""

    def share(cycles: int) -> str:
        return f", {cycles / data['cycles_estimated']:.0%} of the estimated cycles" if cycles else ""

    result = []
    if data["quantize_steps"] + data["dequantize_steps"]:
        cycles = data["quantize_cycles_estimated"]
        text = "The CPU quantizes inputs and outputs: -r makes them int8, if the application can give them so"
        result.append((cycles, f"{text}{share(cycles)}."))
    cycles, count = data["transpose_cycles_estimated"], data["border_transposes"]
    if count and cycles and data["channels_last_helps"]:
        text = f"would remove up to {count} transpose{'s' if count > 1 else ''}{share(cycles)}."
        result.append((cycles, f"channels-last inputs (--use_channels_last_dim_order) {text}"))
    return sorted(result, key=lambda saving: -saving[0])


def _border_transposes(partition: Partition) -> list[int]:
    """Transposes of the partition's own inputs and outputs: the estimated cycles of each."""
    graph, compiled = partition.lowered.graph, partition.converted.compiled
    ends = {t.name for t in (*graph.inputs, *graph.outputs)}
    if compiled is None:  # NXP's converter tells nothing about cost
        ops = [op for op in graph.ops if op.kind is Builtin.TRANSPOSE]
        return [0 for op in ops if ends & {op.outputs[0].name, *(t.name for t in op.inputs if t is not None)}]
    calls = [c for c in compiled.calls if c.operator == Builtin.TRANSPOSE.name]
    return [c.cost.cycles for c in calls if ends & {*c.reads, *c.writes}]


def _channels_last_helps(program: CompiledProgram) -> bool:
    """Whether the program takes images in PyTorch's order; a LiteRT model says itself what it takes."""
    if any(p.lowered.naive is p.lowered.graph for p in program.partitions):
        return False
    inputs = [s for m in program.info.methods.values() for s in m.inputs if s is not None]
    return any(len(s.shape) == 4 and s.dim_order == (0, 1, 2, 3) for s in inputs)


def _count(module: GraphModule, kind: str) -> int:
    """Quantize or dequantize steps that ExecuTorch runs on the CPU."""
    return sum(
        n.op == "call_function" and kind in f".{op_name(n).split('.', 1)[-1]}" for n in module.graph.nodes
    )


def _share(part: int, rest: int) -> str:
    return f"{part / (part + rest):.0%}"
