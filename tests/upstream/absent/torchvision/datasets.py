"""None."""
