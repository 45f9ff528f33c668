"""Types narrower than torch computes in: integers of 2 and 4 bits, floats of 4 and 8.

A tensor of such a type has torch's dtype and one byte per element. Nothing is computed in it: values are
opened to int8, uint8 or float32, and closed again, as ONNX's casts and quantize steps define it.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

# Not in torch's type stubs.
INT4, UINT4, INT2, UINT2 = (getattr(torch, name) for name in ("int4", "uint4", "int2", "uint2"))
FLOAT4 = torch.float4_e2m1fn_x2  # one value per byte here, whatever torch packs into it
BITS = {INT4: 4, UINT4: 4, INT2: 2, UINT2: 2, FLOAT4: 4}
INTEGERS = {INT4: (-8, 7), UINT4: (0, 15), INT2: (-2, 1), UINT2: (0, 3)}
_FLOAT4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_POWERS = torch.float8_e8m0fnu
_LARGEST = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e4m3fnuz: 240.0,
    torch.float8_e5m2: 57344.0,
    torch.float8_e5m2fnuz: 57344.0,
}
NARROW = frozenset((*BITS, *_LARGEST, _POWERS))


def opened(x: Tensor) -> Tensor:
    """The same numbers in a type that torch computes in; other tensors as they are."""
    if x.dtype in INTEGERS:
        return x.view(torch.int8 if INTEGERS[x.dtype][0] else torch.uint8)
    if x.dtype == FLOAT4:
        codes = x.view(torch.uint8).to(torch.int64)
        sizes = torch.tensor(_FLOAT4_VALUES)[codes & 7]
        return torch.where(codes > 7, -sizes, sizes)
    return x.to(torch.float32) if x.dtype in NARROW else x


def closed(x: Tensor, dtype: torch.dtype, saturate: bool = True, rounding: str = "up") -> Tensor:
    """Numbers as one of the narrow types; other types by torch's own conversion."""
    if dtype in INTEGERS:
        low, high = INTEGERS[dtype]
        whole = torch.remainder(x.to(torch.int32) - low, high - low + 1) + low  # the upper bits are dropped
        return whole.to(torch.int8 if low else torch.uint8).view(dtype)
    if dtype == FLOAT4:
        return _float4(x.to(torch.float32)).view(dtype)
    if dtype == _POWERS:
        return _powers(x.to(torch.float32), saturate, rounding)
    if dtype not in _LARGEST:
        return x.to(dtype)
    x = x.to(torch.float32)
    if saturate:
        return torch.clamp(x, -_LARGEST[dtype], _LARGEST[dtype]).to(dtype)
    if dtype == torch.float8_e4m3fn:  # which torch saturates; halfway to what would be 480 it rounds down
        x = torch.where(x.abs() > 464.0, torch.nan, x)
    return x.to(dtype)


def _float4(x: Tensor) -> Tensor:
    """The codes of the nearest values, ties to the even code; what is too large is the largest."""
    size = x.abs()
    code = torch.zeros_like(x, dtype=torch.int64)
    for i in range(1, len(_FLOAT4_VALUES)):
        middle = (_FLOAT4_VALUES[i - 1] + _FLOAT4_VALUES[i]) / 2
        code = code + ((size >= middle) if i % 2 == 0 else (size > middle)).to(torch.int64)
    negative = torch.signbit(x) | torch.isnan(x)  # it has no NaN; -0 is what others make of one
    return torch.where(negative, code + 8, code).to(torch.uint8)


def _powers(x: Tensor, saturate: bool, rounding: str) -> Tensor:
    """Powers of two without a sign: the exponent of a float32, rounded by its fraction."""
    bits = x.view(torch.int32)
    exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    half = 0x400000
    if rounding == "nearest":
        more = (fraction > half) | ((fraction == half) & (exponent > 0))
    else:
        more = (fraction > 0) if rounding == "up" else torch.zeros_like(fraction, dtype=torch.bool)
    most = 0xFE if saturate else 0xFF
    raised = torch.clamp(exponent + more.to(torch.int32), max=most)
    return torch.where(exponent == 0xFF, exponent, raised).to(torch.uint8).view(_POWERS)
