"""One example for every kind of thing the NPU is for: `make app NAME=anomaly`."""
