"""Programs that remember: their parts, and random networks of them."""
