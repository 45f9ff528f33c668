"""One form for what PyTorch says in several: no in-place calls, no constants left to compute, no no-ops."""
