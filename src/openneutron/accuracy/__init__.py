"""How far int8 results are from float ones, layer by layer, and what would help."""
