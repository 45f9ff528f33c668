"""What a program costs: cycles of NPU and CPU, and when."""
