"""Which nodes the NPU takes: clusters of quantized operators, reasons for the rest, and the partitioner."""
