"""Running programs on the host: the same C code as the firmware, bit for bit."""
