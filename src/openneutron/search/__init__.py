"""The search over variants of a model: what may vary, which are tried, where they run, which are best.

    space (what varies) -> study (which point is next) -> workers (where it runs) -> front (which are best)

What a trial does (load, quantize, compile, evaluate) belongs to the command line's layer and is handed in.
"""
