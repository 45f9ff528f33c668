"""The report as one web page that needs nothing else: summary, reasons, every kernel call with its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: .15em .9em .15em 0; text-align: left }
th { font-weight: 600; border-bottom: 1px solid #ccc }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #5b8def; height: .8em; display: inline-block } .hint { background: #fff6d6; padding: .6em }
@media (prefers-color-scheme: dark) { body { background: #1b1c1e; color: #ddd } .hint { background: #443 } }
"""
_FIGURES = {
    "program": "program",
    "target": "target",
    "converter": "converter",
    "partitions": "partitions",
    "npu_nodes": "nodes on the NPU",
    "macs_npu": "MACs on the NPU",
    "macs_cpu": "MACs on the CPU",
    "border_transposes": "transposes at the borders",
    "quantize_steps": "quantize steps on the CPU",
    "dequantize_steps": "dequantize steps on the CPU",
    "weights_bytes": "weights, bytes",
    "scratch_bytes": "scratch, bytes",
    "sram_prefetch_bytes": "prefetch area, bytes",
    "program_bytes": "program file, bytes",
    "fits": "fits the SRAM",
    "cycles_estimated": "cycles (estimated, not measured)",
    "time_us_estimated": "microseconds (estimated, not measured)",
}


def render_html(data: Mapping[str, Any]) -> str:
    """The page for a summary with `layers` in it."""
    title = f"{data['program'] or 'program'} on {data['chip']}"
    figures = _table((), ([label, _plain(data[key])] for key, label in _FIGURES.items()))
    reasons = ([r["node"], r["op"], r["code"], r["reason"], r["hint"]] for r in data["cpu_nodes"])
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="hint">{escape(data["hint"])}</p>',
        figures,
        "<h2>On the CPU, and why</h2>",
        _table(("node", "operator", "code", "reason", "hint"), reasons)
        if data["cpu_nodes"]
        else "<p>nothing</p>",
        "<h2>Kernel calls on the NPU (cycles are estimates)</h2>",
        _layers(data["layers"]),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _layers(layers: list[Mapping[str, Any]]) -> str:
    most = max((layer["cycles_estimated"] for layer in layers), default=1)
    rows = []
    for i, layer in enumerate(layers):
        cycles = layer["cycles_estimated"]
        bar = f'<span class="bar" style="width:{20 * cycles / most:.2f}em"></span>'
        names = escape(", ".join(layer["origin"]))
        cells = f'<td class="n">{i}</td><td>{layer["kernel"].lower()}</td><td>{names}</td>'
        numbers = (
            f'<td class="n">{layer["macs"]:,}</td><td class="n">{cycles:,}</td><td>{layer["bound"]}</td>'
        )
        rows.append(f"<tr>{cells}{numbers}<td>{bar}</td></tr>")
    head = "".join(f"<th>{h}</th>" for h in ("", "kernel", "from", "MACs", "cycles", "bound by", ""))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _table(head: tuple[str, ...], rows: Iterable[list[str]]) -> str:
    top = f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
