"""Commands that run programs, here, on firmware or on a board: run, firmware, disasm."""
