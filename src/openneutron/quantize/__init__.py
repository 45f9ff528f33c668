"""Quantization: NeutronQuantizer reads the operator table; post-training and training loops around it."""
