"""The CPU beside the NPU: ExecuTorch's Cortex-M backend for what Neutron leaves, or for a whole program."""
