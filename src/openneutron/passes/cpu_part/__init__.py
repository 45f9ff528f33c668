"""Passes on what stays on the CPU: memory orders and parameters as ExecuTorch's kernels take them."""
