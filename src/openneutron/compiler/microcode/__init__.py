"""The binary format: records, kernels and program; the C header comes from here."""
