"""MTCNN's three networks, with the weights and names of facenet-pytorch, which is not imported."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.trained_networks import package


class PNet(nn.Module):
    """Pixels of any size -> moves of the sides (N, 4, rows, columns) and how likely a face is (N, 2, ...)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, H, W)"""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), self.conv4_1(x).softmax(1)


class RNet(nn.Module):
    """Pixels (N, 3, 24, 24) -> moves (N, 4) and how likely a face is (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool1, self.pool2 = (nn.MaxPool2d(3, 2, ceil_mode=True) for _ in range(2))
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, 24, 24)"""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_2(x), self.dense5_1(x).softmax(1)


class ONet(nn.Module):
    """Pixels (N, 3, 48, 48) -> moves (N, 4), five points (N, 10) and how likely a face is (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.pool1, self.pool2 = (nn.MaxPool2d(3, 2, ceil_mode=True) for _ in range(2))
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = (nn.Linear(256, n) for n in (2, 4, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(N, 3, 48, 48)"""
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).flatten(1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), self.dense6_1(x).softmax(1)


def networks() -> list[nn.Module]:
    """P-Net, R-Net and O-Net, trained."""
    modules = [PNet(), RNet(), ONet()]
    for module, name in zip(modules, "pro", strict=True):
        weights = torch.load(package("facenet_pytorch") / f"data/{name}net.pt", weights_only=True)
        module.load_state_dict(weights)
    return [module.eval() for module in modules]
