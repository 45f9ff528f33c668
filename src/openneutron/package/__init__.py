"""What goes into a .pte: the delegate payload, the backend class, kernel selection."""
