"""Layers folded, joined and split in float, before anything is quantized."""
