"""Print runtime/cpu_kernels/gelu_table.h: erf(x / sqrt(2)) as polynomials, one a quarter from 0 to 6."""

from __future__ import annotations

from mpmath import cos, erf, lu_solve, matrix, mp, mpf, nint, pi, sqrt

ROWS, DEGREE = 24, 9
HIGH = 5  # factors of the powers from this one on are small enough for 32 bits
HEAD = f"""/* erf(x / sqrt(2)) as a polynomial of v, for x = (row + 0.5 + v / 2) / 4 and v from -1 to 1, off
 * by less than 2^-53: the factors of v^0 to v^{HIGH - 1} in 2^-62, of v^{HIGH} to v^{DEGREE} in 2^-51.
 * Written by tools/gelu_table.py. */
/* clang-format off */
enum {{ CPU_GELU_HIGH = {HIGH}, CPU_GELU_DEGREE = {DEGREE} }};
static const struct {{
    int64_t low[{HIGH}];
    int32_t high[{DEGREE + 1 - HIGH}];
}} cpu_gelu_table[{ROWS}] = {{"""


def factors(row: int) -> list[int]:
    """Through the Chebyshev nodes, so that the error is spread evenly."""
    count = DEGREE + 1
    nodes = [cos(pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    powers = matrix([[node**k for k in range(count)] for node in nodes])
    wanted = matrix([erf((row + mpf(1) / 2 + node / 2) / 4 / sqrt(2)) for node in nodes])
    found = lu_solve(powers, wanted)
    return [int(nint(factor * mpf(2) ** (62 if k < HIGH else 51))) for k, factor in enumerate(found)]


def main() -> None:
    """Print the header."""
    mp.dps = 60
    print(HEAD)
    for row in range(ROWS):
        numbers = [str(n) for n in factors(row)]
        print(f"    {{{{{', '.join(numbers[:HIGH])}}},")
        print(f"     {{{', '.join(numbers[HIGH:])}}}}},")
    print("};")


if __name__ == "__main__":
    main()
