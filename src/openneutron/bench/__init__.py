"""The figures users choose by, measured on their own models: memory, cycles, host time, compile time."""
