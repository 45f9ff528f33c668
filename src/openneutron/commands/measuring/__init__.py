"""Commands that measure: eval, compare, diff, check, bench, report."""
