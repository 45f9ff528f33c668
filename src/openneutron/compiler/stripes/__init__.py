"""Layers computed together in stripes of rows."""
