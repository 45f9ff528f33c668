"""Upsampling: nearest neighbour and bilinear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from openneutron.litert.ir import Builtin, Tensor
from openneutron.ops.common import nxp_limit, quant_of
from openneutron.ops.spec import Call, Case, Lower, Lowering, OpSpec, Shared, Values


def _resize(kind: Builtin, bilinear: bool) -> Lower:
    def lower(at: Lowering, call: Call) -> Tensor:
        b = at.build
        n, c, h, w = call.out.shape
        corners = bool(call.get("align_corners", False))
        options = {"alignCorners": corners, "halfPixelCenters": bilinear and not corners}
        x = b.to_channels_last(b.requantize(at(call.input), quant_of(call)))
        size = b.const(np.array([h, w], np.int32))
        return b.to_channels_first(b.op(kind, [x, size], (n, h, w, c), x.quant, options=options))

    return lower


def _factors(call: Call) -> list[float]:
    """How far samples come to lie apart: from corner to corner, if those are aligned."""
    corner = 1 if call.get("align_corners", False) else 0
    sizes = zip(call.out.shape[2:], call.input.shape[2:], strict=True)
    return [(o - corner) / (i - corner) if i > corner else math.inf for o, i in sizes]


def _limit(case: Case) -> tuple[Any, ...]:
    return (
        nxp_limit(
            "Scale must be 1, 2, 4 or 8", lambda c: set(_factors(c)) <= {1.0, 2.0, 4.0, 8.0}, _factors, case
        ),
    )


def _upsample(mode: str, size: Any = None, **kwargs: Any) -> Any:
    return lambda torch: torch.nn.Upsample(size=size, mode=mode, **kwargs)


_SHAPE = ((2, 3, 4, 5),)
NEAREST = OpSpec(
    ("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default"),
    Shared(Values.CHOSEN),
    _resize(Builtin.RESIZE_NEAREST_NEIGHBOR, False),
    _limit(Case("x3", _upsample("nearest", scale_factor=3), _SHAPE)),
    tuple(Case(f"x{f}", _upsample("nearest", scale_factor=f), _SHAPE, True, tolerance=0) for f in (2, 4, 8))
    + (Case("to size", _upsample("nearest", (7, 9)), _SHAPE, True, tolerance=0),),
)
BILINEAR = OpSpec(
    ("aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"),
    Shared(Values.ROUNDED),
    _resize(Builtin.RESIZE_BILINEAR, True),
    _limit(Case("x3", _upsample("bilinear", scale_factor=3), _SHAPE)),
    tuple(
        # LiteRT rounds (in - 1) / (out - 1) to ten bits: the further from the corner, the further off.
        Case(
            f"x{f} corners {a}",
            _upsample("bilinear", scale_factor=f, align_corners=a),
            _SHAPE,
            True,
            tolerance=2 if a and f == 4 else 1,
        )
        for f in (2, 4)
        for a in (False, True)
    )
    + (Case("to size", _upsample("bilinear", (7, 9)), _SHAPE, True),),
)
