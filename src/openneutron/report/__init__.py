"""The report: what is known of a compiled program as plain data, then rendered."""
