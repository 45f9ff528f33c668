"""The summary on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from openneutron.diagnostics import printable
from openneutron.report.cost_model import error_range

if TYPE_CHECKING:
    from openneutron.run.profile import Profile

MOST_REASONS = 12
_UNCERTAIN_DB = 1.0  # of a figure; less is not worth a word
DISAGREES = 10  # percentage points between the shares of host time and of estimated cycles


class PlainConsole(Console):
    """A console on which text is text: names from files neither style it nor command the terminal.

    What this package styles itself is a `Text`, or says so with `styled`.
    """

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string, also one in a table, comes by here."""
        return super().render_str(printable(text), **options)


def styled(markup: str, *texts: Any) -> Text:
    """Text with rich's markup; `{}` stand for texts that have none."""
    return Text.from_markup(markup.format(*(escape(printable(str(text))) for text in texts)))


def make_console() -> PlainConsole:
    """The console for results; into a file or a pipe lines are as long as they need to be."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=200)


def print_summary(console: Console, data: Mapping[str, Any]) -> None:
    """Print what a compile yielded."""
    total = data["macs_npu"] + data["macs_cpu"]
    cpu = len(data["cpu_nodes"])
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), title=_title(data), title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    rows: list[tuple[str, str | Text]] = []
    if data["cycles_estimated"]:
        cycles, micro = data["cycles_estimated"], data["time_us_estimated"]
        text, off = "{} cycles, {} ms [yellow]({})[/]", error_range(data.get("invented", ""))
        rows.append(("time", styled(text, f"{cycles:,}", f"{micro / 1000:.3f}", off)))
        rows.append(("of it", _parts(data)))
    rows += [
        ("on the NPU", f"{_count(data['npu_nodes'], 'node')}, {_work(data, 'npu', total)}"),
        ("on the CPU", f"{_count(cpu, 'node')}, {_work(data, 'cpu', total)}"),
        ("partitions", str(data["partitions"])),
        ("at the borders", _borders(data)),
        ("weights", _bytes(data["weights_bytes"])),
        ("scratch", _bytes(data["scratch_bytes"])),
    ]
    if data.get("state_bytes"):
        names = ", ".join(state["name"] for state in data["states"][:4])
        more = f", {len(data['states']) - 4} more" if len(data["states"]) > 4 else ""
        rows.append(("remembers", f"{_bytes(data['state_bytes'])}  int8, from run to run: {names}{more}"))
    if shared := data.get("shared_states"):
        names = ", ".join(state["name"] for state in shared[:4]) + (", ..." if len(shared) > 4 else "")
        size = _bytes(sum(state["bytes"] for state in shared))
        rows.append(("methods share", f"{size}  of ExecuTorch's memory, from run to run: {names}"))
    if data["sram_prefetch_bytes"]:
        rows.append(("prefetch area", _bytes(data["sram_prefetch_bytes"])))
    rows += [
        ("inputs and outputs", _bytes(data["io_bytes"])),
        ("reserve for both", f"{_bytes(data['reserve_bytes'])}  at least, weights aside"),
        ("program file", f"{_bytes(data['program_bytes'])}  {data['program'] or ''}"),
        ("fits the SRAM", _fits(data)),
    ]
    if data.get("runs_on"):
        rows.append(("runs on", data["runs_on"]))
    if accuracy := data.get("accuracy"):
        rows.append(("int8 against float", _quality(accuracy)))
        if kept := accuracy.get("kept_float"):
            rows.append(("mixed precision", kept_float_text(kept)))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    if accuracy and accuracy["warning"]:
        console.print(styled("[bold red]warning[/]  {}", accuracy["warning"]), soft_wrap=True)
    print_reasons(console, data["cpu_nodes"])
    console.print(styled("[bold]hint[/]  {}", data["hint"]), soft_wrap=True)


def print_reasons(console: Console, rejected: Sequence[Mapping[str, str]]) -> None:
    """Why nodes stay on the CPU; equal reasons in one row."""
    if not rejected:
        return
    groups = Counter((r["op"], r["code"], r["reason"], r["hint"]) for r in rejected)
    table = Table(box=None, padding=(0, 2, 0, 0), title="Why on the CPU", title_justify="left")
    for name in ("nodes", "operator", "code", "reason"):
        table.add_column(name, justify="right" if name == "nodes" else "left", overflow="fold")
    for (op, code, reason, _), count in groups.most_common(MOST_REASONS):
        table.add_row(str(count), op, code, reason)
    console.print(table)
    if len(groups) > MOST_REASONS:
        console.print(f"... and {len(groups) - MOST_REASONS} more; --json has all of them", style="dim")


def print_accuracy(console: Console, rows: Sequence[tuple[str, float, str]]) -> None:
    """Accuracies side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), title="Accuracy", title_justify="left")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_column("", style="dim")
    for name, value, remark in rows:
        table.add_row(name, f"{value:.2%}", remark)
    console.print(table)


def print_methods(console: Console, accuracy: Mapping[str, Any]) -> None:
    """What was done when quantizing, in order, and what each method did to the outputs."""
    if kept := accuracy.get("kept_float"):
        console.print(kept_float_text(kept), soft_wrap=True)
    if not accuracy["methods"]:
        return
    title = f"Quantizing ({accuracy['plan']}), error of the outputs"
    if accuracy.get("peak_memory_bytes"):
        title += f"; at most {accuracy['peak_memory_bytes'] / 2**20:,.0f} MiB of memory used"
    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
    table.add_column("method")
    for name in ("before", "after", "s"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in accuracy["methods"]:
        remark = row["text"] if row["kept"] else f"{row['text']} (not kept)"
        before, after = (_db(row[key]) for key in ("before_db", "after_db"))
        table.add_row(row["method"], before, after, f"{row['seconds']:.1f}", remark)
    console.print(table)


def kept_float_text(kept: Mapping[str, Any]) -> str:
    """What was kept float, what it gives and what it costs."""
    more = kept["cycles_after"] / max(1, kept["cycles_before"]) - 1
    if not kept["layers"]:
        return f"no layer is worth keeping float within {kept['budget']:.0%} of the cycles"
    gain = f"{_db(kept['before_db'])} to {_db(kept['after_db'])} at the outputs"
    text = f"kept float: {' '.join(kept['layers'])}: {gain} for {more:+.1%} of the estimated cycles"
    unasked = "; an output was below 20 dB without (--keep-float-budget 0 forbids it)"
    return text if kept["asked"] else text + unasked


def _db(value: float | None) -> str:
    return "exact" if value is None else f"{value:.1f} dB"


def _quality(accuracy: Mapping[str, Any]) -> str:
    if not accuracy["samples"]:
        return f"not measured: of {_count(accuracy['calibration_samples'], 'sample')} none can be kept back"
    each = ", ".join(_db(value) for value in accuracy["per_output_sqnr_db"])
    same = accuracy["agreement"]
    agreed = "" if same is None else f", the same class for {same:.0%}"
    seen = _count(accuracy["samples"], "sample")
    if accuracy["folded"]:
        seen += ", each judged by a model of the others"
    else:
        seen += f" kept back, {accuracy['calibration_samples']} calibrated with"
    uncertain = accuracy.get("output_sqnr_uncertainty_db") or 0.0
    if uncertain >= _UNCERTAIN_DB:
        seen += f", which leaves {uncertain:.1f} dB uncertain"
    over = accuracy.get("over_time_db") or {}
    moments = ", ".join(f"{_db(value)} at frame {frame}" for frame, value in over.items())
    return f"{each}{agreed} ({seen}; {accuracy['plan']})" + (f"; {moments}" if len(over) > 1 else "")


def print_profile(console: Console, profile: Profile) -> None:
    """Every kernel call: time on this machine and estimated cycles, with the share of each."""
    table = Table(box=None, padding=(0, 2, 0, 0), title="Kernel calls", title_justify="left")
    for name in ("call", "kernel", "edge nodes"):
        table.add_column(name, justify="right" if name == "call" else "left", overflow="fold")
    for name in ("host us", "share", "cycles (est.)", "share", "difference"):
        table.add_column(name, justify="right")
    several = len({row.delegate for row in profile.calls}) > 1
    for row in profile.calls:
        gap = 100 * (row.cycles_share - row.host_share)
        style = "yellow" if abs(gap) >= DISAGREES else None
        table.add_row(
            f"{row.delegate}:{row.call}" if several else str(row.call),
            row.kernel,
            ", ".join(_short(node) for node in row.nodes) or "-",
            f"{row.host_us:,.1f}",
            f"{row.host_share:.1%}",
            f"{row.cycles_estimated:,}",
            f"{row.cycles_share:.1%}",
            f"{gap:+.1f}",
            style=style,
        )
    table.add_section()
    host, cycles = sum(r.host_us for r in profile.calls), sum(r.cycles_estimated for r in profile.calls)
    table.add_row("", "all calls", "", f"{host:,.1f}", "", f"{cycles:,}", "", "")
    for other in profile.others:
        table.add_row(
            "", "" if other.name.startswith("delegate") else "CPU", other.name, f"{other.host_us:,.1f}"
        )
    console.print(table)
    console.print(
        "host us: median time on this machine. cycles: estimates of the NPU for each call by itself. Where "
        "the shares differ, the NPU is expected to spend its time elsewhere than this machine does.",
        style="dim",
        soft_wrap=True,
    )
    if not profile.named:
        console.print(
            "no ETRecord, so the edge nodes are not known: compile with --use_profiling, or give --etrecord",
            style="dim",
            soft_wrap=True,
        )


def _short(node: str) -> str:
    """An Edge node's name without what they all have: aten_convolution_default_1 -> convolution_1."""
    return node.removeprefix("aten_").replace("_default", "").strip("_")


def _title(data: Mapping[str, Any]) -> Text:
    texts = (data[key] for key in ("chip", "npu", "target", "converter"))
    return styled("[bold]{}[/] ({}, {}), {} converter", *texts)


def _borders(data: Mapping[str, Any]) -> str:
    parts = [
        _count(data["border_transposes"], "transpose"),
        _count(data["quantize_steps"], "quantize step"),
        _count(data["dequantize_steps"], "dequantize step"),
    ]
    if data["runtime_transposes"]:
        parts.insert(1, f"{_count(data['runtime_transposes'], 'transpose')} by the runtime")
    return ", ".join(parts)


def _parts(data: Mapping[str, Any]) -> str:
    """What the time is made of."""
    named = {
        "NPU": "cycles_npu",
        "CPU operators": "cycles_cpu",
        "quantizing and transposing": "cycles_borders",
    }
    return ", ".join(f"{name} {data[key] / data['cycles_estimated']:.0%}" for name, key in named.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _fits(data: Mapping[str, Any]) -> str | Text:
    if data["fits"] is None:
        return "not known: nothing is known here of this chip's memory; --sram says how much there is"
    return styled("yes, of {}" if data["fits"] else "[bold red]no[/], of {}", _bytes(data["sram_bytes"]))


def _work(data: Mapping[str, Any], side: str, total: int) -> str:
    """The share of cycles first: MACs say nothing of operators that have none."""
    macs, cycles = data[f"macs_{side}"], data["cycles_estimated"]
    share = f"{data[f'cycles_{side}'] / cycles:.0%} of the cycles, " if cycles else ""
    return share + (f"{macs:,} MACs ({macs / total:.1%})" if total else f"{macs:,} MACs")


def _bytes(size: int) -> str:
    return f"{size:,} B" if size < 10 * 1024 else f"{size:,} B ({size / 1024:,.1f} KiB)"
