"""What would help a layer, from the evidence: each suggestion names the figures it is drawn from.

A layer is worth a suggestion when its error is above one part in a thousand of its power. One whose own error
is small inherits it, and is mended where it began; one whose result is much worse than what it reads, though
it adds little, amplifies: a root or a quotient of what eight bits hold badly. It is named, with the
arithmetic before it that belongs to it. Otherwise the larger part of its own error decides: its
weights (per-channel scales, if trying them on this layer helped) or rounding its result (a range that fits
the samples, if they leave the calibrated one). What is left cannot be had with eight bits: training adapts
the model to them, and a single layer can stay float on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openneutron.accuracy.layer_error import LayerError, Suggestion
from openneutron.accuracy.weight_trial import gain
from openneutron.quantize.plan import BALANCED, BEST

GOOD_DB = 30.0  # the threshold above which a layer gets no suggestion
GAIN_DB = 3.0  # half the error: less is not worth a change
CLIPPED = 1e-3  # of its values: fewer say nothing about the range
ARITHMETIC = {"pow", "mul", "add", "sub", "div", "sqrt", "rsqrt", "square", "exp", "log", "reciprocal", "sum",
              "mean", "linalg_vector_norm", "abs", "neg"}  # fmt: skip
MANY = 1 / 3  # of the layers in need of help: then it is not one layer's problem


def suggest(
    rows: Sequence[LayerError], sources: Mapping[str, set[str]], plan: str = BALANCED
) -> list[LayerError]:
    """The same rows with suggestions, the worst first; `sources` are the layers each reads from.

    `plan` has been used: the next one is suggested before what costs more.
    """
    by_name = {row.layer: row for row in rows}
    many = sum(row.own_sqnr_db < GOOD_DB for row in rows) >= max(3, MANY * len(rows))
    result = [replace(row, suggestion=_suggestion(row, by_name, sources, many, plan)) for row in rows]
    return sorted(result, key=lambda row: row.sqnr_db)


def _suggestion(
    row: LayerError,
    rows: Mapping[str, LayerError],
    sources: Mapping[str, set[str]],
    many: bool,
    plan: str,
) -> Suggestion | None:
    if row.sqnr_db >= GOOD_DB:
        return None
    following = {BALANCED: BEST, BEST: None}.get(plan, BALANCED)
    more = f"--accuracy {following}, or " if following else ""
    if _amplified(row, rows, sources) >= 2 * GAIN_DB:
        return _amplifies(row, rows, sources)
    if row.own_sqnr_db - row.sqnr_db > 2 * GAIN_DB:  # its own part is less than a quarter
        return _inherited(row, rows, sources, more)
    weight = _weight(row)
    if weight <= row.rounding_sqnr_db and gain(weight, row.per_channel_sqnr_db) >= GAIN_DB:
        return Suggestion(
            "per-channel",
            f"--per-channel: the weights of its channels differ {row.channel_spread:,.0f} : 1 in size; tried "
            f"on this layer, they cost {row.per_channel_sqnr_db:.1f} instead of {weight:.1f} dB",
        )
    clips = row.clipped >= CLIPPED and gain(row.rounding_sqnr_db, row.wide_sqnr_db) >= GAIN_DB
    if row.rounding_sqnr_db <= weight and clips:
        return Suggestion(
            "calibration",
            f"calibrate on wider data: {row.clipped:.1%} of its values are clipped to {_range(row.range)}, "
            f"they reach {_range(row.reached)}; that range gives about {row.wide_sqnr_db:.1f} instead of "
            f"{row.rounding_sqnr_db:.1f} dB",
        )
    cause = (
        f"its weights cost {weight:.1f} dB, and a scale per channel does not help"
        if weight <= row.rounding_sqnr_db
        else f"rounding its result costs {row.rounding_sqnr_db:.1f} dB, and no other range does better"
    )
    if many:
        return Suggestion("qat", f"{more}--use_qat: {cause}, and it is not the only such layer")
    return Suggestion(
        "float",
        f"{more}--keep-float {row.layer} (float on the CPU; --keep-float-budget 5% chooses by the outputs), "
        f"or --use_qat: {cause}",
    )


def _amplified(row: LayerError, rows: Mapping[str, LayerError], sources: Mapping[str, set[str]]) -> float:
    """Decibels a layer loses of what it reads, beyond what it adds itself."""
    read = [rows[name].sqnr_db for name in sources.get(row.layer, ()) if name in rows]
    if not read or row.own_sqnr_db - row.sqnr_db < GAIN_DB:  # half of the error is its own
        return 0.0
    return min(read) - row.sqnr_db


def _amplifies(
    row: LayerError, rows: Mapping[str, LayerError], sources: Mapping[str, set[str]]
) -> Suggestion:
    group, pending = [row.layer], [row.layer]
    while pending:  # arithmetic without weights, back to the layers that feed it
        for name in sorted(sources.get(pending.pop(), ())):
            if name in rows and name not in group and _is_arithmetic(rows[name].op):
                group.append(name)
                pending.append(name)
    group.reverse()
    read = min(rows[name].sqnr_db for name in sources[row.layer] if name in rows)
    return Suggestion(
        "float",
        f"--keep-float {' '.join(group)}: {row.op} amplifies the error of what it reads, from {read:.1f} to "
        f"{row.sqnr_db:.1f} dB, while its own rounding costs {_db(row.own_sqnr_db)}",
        tuple(group),
    )


def _is_arithmetic(op: str) -> bool:
    return op.removeprefix("aten.").split(".")[0].rstrip("_") in ARITHMETIC


def _inherited(
    row: LayerError, rows: Mapping[str, LayerError], sources: Mapping[str, set[str]], more: str
) -> Suggestion:
    """Name the layer before it that amplifies or adds most; if none is bad by itself, they add up."""
    before = [rows[name] for name in _before(row.layer, sources)]
    own = f"its own error is {_db(row.own_sqnr_db)}"
    loudest = max(before, key=lambda r: _amplified(r, rows, sources), default=None)
    if loudest is not None and _amplified(loudest, rows, sources) >= 2 * GAIN_DB:
        lost = _amplified(loudest, rows, sources)
        return Suggestion(
            "inherited", f"inherited: {own}; mend {loudest.layer} ({loudest.op} loses {lost:.1f} dB) first"
        )
    worst = min(before, key=lambda r: r.own_sqnr_db, default=None)
    if worst is None or worst.own_sqnr_db > row.own_sqnr_db:
        return Suggestion(
            "inherited", f"inherited: {own}; the error comes from quantizing the model's inputs"
        )
    if worst.own_sqnr_db < GOOD_DB:
        return Suggestion(
            "inherited", f"inherited: {own}; mend {worst.layer} ({_db(worst.own_sqnr_db)}) first"
        )
    weighted = [r for r in before if r.per_channel_sqnr_db is not None]
    helped = [
        r
        for r in weighted
        if _weight(r) <= r.rounding_sqnr_db and gain(_weight(r), r.per_channel_sqnr_db) >= GAIN_DB
    ]
    several = f"the errors of {len(before)} layers before it add up, the worst {worst.layer}"
    several += f" ({_db(worst.own_sqnr_db)})"
    if 2 * len(helped) > len(weighted) > 0:
        remark = f"tried on them, it helps {len(helped)} of {len(weighted)}"
        return Suggestion("per-channel", f"--per-channel: {several}; {own}; {remark}")
    return Suggestion("qat", f"{more}--use_qat: {several}; {own}")


def _before(layer: str, sources: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    pending = list(sources.get(layer, ()))
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += sources.get(name, ())
    return found


def _weight(row: LayerError) -> float:
    return math.inf if row.weight_sqnr_db is None else row.weight_sqnr_db


def error_rows(rows: Sequence[LayerError]) -> list[dict[str, Any]]:
    """The rows as the report's `errors` takes them: by Edge node, in the order given."""
    plain = [row.as_dict() for row in rows]
    return [
        {
            "node": row["edge"],
            "name": row["layer"],
            "op": row["op"],
            "sqnr_db": row["sqnr_db"],
            "max_abs": row["max_error"],
            "cosine": row["cosine"],
            "own_sqnr_db": row["own_sqnr_db"],
            "simulator_sqnr_db": row["simulator_sqnr_db"],
            "kind": row["suggestion"]["kind"] if row["suggestion"] else None,
            "suggestion": row["suggestion"]["text"] if row["suggestion"] else "",
        }
        for row in plain
    ]


def _range(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3g} .. {pair[1]:.3g}"


def _db(value: float) -> str:
    return "zero" if math.isinf(value) else f"{value:.1f} dB"
