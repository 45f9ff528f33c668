"""Operators the table does not know, in terms of those it does: a file a kind of operator."""
