"""See the module."""
