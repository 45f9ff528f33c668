"""A test that `make test-fast` leaves out says why it takes long, beside its mark."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
MARK = "mark." + "slow"


def test_a_slow_test_says_why():
    silent = []
    for path in sorted(TESTS.rglob("*.py")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if MARK in line and not any("# " in near for near in lines[max(0, number - 2) : number + 1]):
                silent.append(f"{path.relative_to(TESTS)}:{number + 1}")
    assert not silent, "add a comment with the reason"
