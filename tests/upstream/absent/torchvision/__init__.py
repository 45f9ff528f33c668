"""Stands in for torchvision, which ExecuTorch's NXP examples import; MobileNetV2 is the zoo's, untrained.

Data sets are not there: the examples make random data with --use_random_dataset.
"""

from torchvision import datasets, models, transforms

__all__ = ["datasets", "models", "transforms"]
