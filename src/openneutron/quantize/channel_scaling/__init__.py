"""Channels scaled across layers, so that one range suits all of them; the float function stays as it is."""
