"""Which kernel call computes an operator: one file a kind of operator, and how each works row by row."""
