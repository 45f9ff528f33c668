"""Small networks in the manner of timm's, torchvision's and Transformers': random weights, tiny inputs.

As a command they are compiled and a row is printed for each: partitions, operators on the CPU, and the CPU's
share of the estimated cycles.

    python -m tests.architectures [NAME ...]
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PICTURE = (1, 3, 16, 16)


def conv(i: int, o: int, k: int = 3, s: int = 1, g: int = 1, act: Any = nn.ReLU) -> nn.Sequential:
    layers = [nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Apply(nn.Module):
    """A function of some layers and the input."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def head(channels: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))


def residual(*body: nn.Module) -> Apply:
    return Apply(lambda m, x: x + m.body(x), body=nn.Sequential(*body))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Grn(nn.Module):
    """Global response normalization, channels last."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels))
        self.bias = nn.Parameter(torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        share = size / (size.mean(-1, keepdim=True) + 1e-6)
        return x + torch.addcmul(self.bias, self.weight, x * share)


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def convnext(grn: bool) -> nn.Module:
    def block(m: Any, x: Tensor) -> Tensor:
        y = m.norm(m.depth(x).permute(0, 2, 3, 1))
        return x + m.down(m.grn(F.gelu(m.up(y)))).permute(0, 3, 1, 2)

    parts = {"norm": nn.LayerNorm(8), "up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}
    parts["grn"] = Grn(16) if grn else nn.Identity()
    stage = Apply(block, depth=nn.Conv2d(8, 8, 7, padding=3, groups=8), **parts)
    return head(8, nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8), stage, LayerNorm2d(8))


def squeeze_excite(channels: int) -> Apply:
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), nn.SiLU(), nn.Conv2d(4, channels, 1)
    )
    return Apply(lambda m, x: x * torch.sigmoid(m.gate(x)), gate=gate)


def mobile(act: Any) -> nn.Module:
    block = residual(
        conv(8, 16, 1, act=act), conv(16, 16, 3, g=16, act=act), squeeze_excite(16), conv(16, 8, 1, act=None)
    )
    return head(8, conv(3, 8, 3, 2, act=act), block)


def attention(m: Any, x: Tensor) -> Tensor:
    b, n, c = x.shape
    q, k, v = m.qkv(m.norm(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v)
    x = x + m.out(y.transpose(1, 2).reshape(b, n, c))
    return x + m.mlp(x)


def transformer(norm: Callable[[int], nn.Module] = nn.LayerNorm) -> Apply:
    mlp = nn.Sequential(norm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return Apply(attention, norm=norm(8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8), mlp=mlp)


def on_tokens(body: nn.Module) -> Apply:
    def run(m: Any, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return m.body(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b, c, h, w)

    return Apply(run, body=body)


def linear_attention() -> Apply:
    """ReLU attention of linear cost, as in EfficientViT."""

    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).flatten(2).chunk(3, 1)
        q, k = F.relu(q).transpose(1, 2), F.relu(k)
        v = F.pad(v, (0, 0, 0, 1), value=1.0)
        y = q @ (k @ v.transpose(1, 2))
        y = (y[..., :-1] / (y[..., -1:] + 1e-3)).transpose(1, 2)
        return x + m.out(y.reshape(x.shape))

    return Apply(run, qkv=nn.Conv2d(8, 24, 1), out=conv(8, 8, 1, act=None))


def cross_covariance() -> Apply:
    """Attention between channels on normalized queries and keys, as in EdgeNeXt."""

    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.qkv(m.norm(x)).transpose(1, 2).chunk(3, 1)
        weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(1, 2)).softmax(-1)
        return x + m.out((weights @ v).transpose(1, 2))

    return Apply(run, norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))


def shuffle() -> Apply:
    def run(m: Any, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat([a, m.body(b)], 1)
        n, c, h, w = y.shape
        return y.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)

    return Apply(run, body=nn.Sequential(conv(4, 4, 1), conv(4, 4, 3, g=4, act=None), conv(4, 4, 1)))


def unet(m: Any, x: Tensor) -> Tensor:
    a = m.a(x)
    b = m.b(F.max_pool2d(a, 2))
    return m.c(torch.cat([a, F.interpolate(b, scale_factor=2.0)], 1))


def high_resolution(m: Any, x: Tensor) -> Tensor:
    a, b = m.a(x), m.b(x)
    return F.relu(a + F.interpolate(m.up(b), scale_factor=2.0)) + F.interpolate(
        F.relu(b + m.down(a)), scale_factor=2.0
    )


def detector(m: Any, x: Tensor) -> Tensor:
    y = m.body(x).flatten(2).transpose(1, 2)
    places = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).reshape(
        1, 16, 2
    )
    centre = (y[..., :2].sigmoid() * 2 - 0.5 + places) * 4
    size = (y[..., 2:4].sigmoid() * 2) ** 2 * 8
    return torch.cat([centre, size, y[..., 4:].sigmoid()], -1)


def windows(m: Any, x: Tensor) -> Tensor:
    """Shifted windows with a mask, as in Swin."""
    b, h, w, c = x.shape
    y = torch.roll(m.norm(x), (-2, -2), (1, 2))
    y = y.reshape(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    q, k, v = m.qkv(y).chunk(3, -1)
    y = (q @ k.transpose(1, 2) * c**-0.5 + m.mask).softmax(-1) @ v
    y = y.reshape(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return x + m.out(torch.roll(y, (2, 2), (1, 2)))


def swin() -> nn.Module:
    block = Apply(windows, norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8))
    block.register_buffer("mask", (torch.rand(4, 16, 16) > 0.7).float() * -10)
    return Apply(lambda m, x: m.head(m.block(m.stem(x).permute(0, 2, 3, 1)).mean((1, 2))), block=block,
                 stem=nn.Conv2d(3, 8, 2, 2), head=nn.Linear(8, 5))  # fmt: skip


def spectrum(m: Any, x: Tensor) -> Tensor:
    """A voice detector: Fourier transform as convolution, log magnitude, convolutions, a recurrence."""
    y = m.fourier(x)
    real, imaginary = y.chunk(2, 1)
    power = torch.log(torch.sqrt(real.pow(2) + imaginary.pow(2)) + 1e-2)
    y, _ = m.cell(F.relu(m.conv(power)).transpose(1, 2))
    return torch.sigmoid(m.out(y[:, -1]))


def conformer(m: Any, x: Tensor) -> Tensor:
    x = x + 0.5 * m.first(x)
    x = m.attend(x)
    x = x + m.point(F.silu(m.norm(m.depth(F.glu(m.wide(x.transpose(1, 2)), 1))))).transpose(1, 2)
    return m.last(x + 0.5 * m.second(x))


def _feed() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))


def inception() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        return torch.cat([m.a(x), m.b(x), m.c(x), m.d(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))], 1)

    block = Apply(
        run, a=conv(8, 4, 1), b=nn.Sequential(conv(8, 4, 1), conv(4, 4)), c=conv(8, 4, 5), d=conv(8, 4, 1)
    )
    return head(16, conv(3, 8, 3, 2), block)


def dense() -> nn.Module:
    layer = Apply(
        lambda m, x: torch.cat([x, m.body(x)], 1),
        body=nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)),
    )
    return head(
        6, conv(3, 8, 3, 2), layer, nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 6, 1), nn.AvgPool2d(2)
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (
        lambda: head(8, conv(3, 8, 3, 2), residual(conv(8, 8), conv(8, 8, act=None)), nn.ReLU()),
        PICTURE,
    ),
    "resnext": (
        lambda: head(8, conv(3, 8, 3, 2), residual(conv(8, 8, 1), conv(8, 8, g=2), conv(8, 8, 1, act=None))),
        PICTURE,
    ),
    "regnet": (
        lambda: head(
            8,
            conv(3, 8, 3, 2),
            residual(conv(8, 8, 1), conv(8, 8, g=4), squeeze_excite(8), conv(8, 8, 1, act=None)),
        ),
        PICTURE,
    ),
    "mobilenet_v2": (
        lambda: head(
            8,
            conv(3, 8, 3, 2, act=nn.ReLU6),
            residual(
                conv(8, 16, 1, act=nn.ReLU6), conv(16, 16, g=16, act=nn.ReLU6), conv(16, 8, 1, act=None)
            ),
        ),
        PICTURE,
    ),
    "mobilenet_v3": (lambda: mobile(nn.Hardswish), PICTURE),
    "efficientnet": (lambda: mobile(nn.SiLU), PICTURE),
    "mobileone": (
        lambda: head(
            8,
            Apply(
                lambda m, x: F.relu(m.a(x) + m.b(x)),
                a=conv(3, 8, 3, 2, act=None),
                b=conv(3, 8, 1, 2, act=None),
            ),
        ),
        PICTURE,
    ),
    "shufflenet": (lambda: head(8, conv(3, 8, 3, 2), shuffle()), PICTURE),
    "ghostnet": (
        lambda: head(
            8,
            conv(3, 8, 3, 2),
            Apply(lambda m, x: torch.cat([m.a(x), m.b(m.a(x))], 1), a=conv(8, 4, 1), b=conv(4, 4, g=4)),
        ),
        PICTURE,
    ),
    "squeezenet": (
        lambda: head(
            8,
            conv(3, 8, 3, 2),
            conv(8, 4, 1),
            Apply(lambda m, x: torch.cat([m.a(x), m.b(x)], 1), a=conv(4, 4, 1), b=conv(4, 4)),
        ),
        PICTURE,
    ),
    "densenet": (dense, PICTURE),
    "inception": (inception, PICTURE),
    "vovnet": (
        lambda: head(
            8,
            conv(3, 8, 3, 2),
            Apply(
                lambda m, x: x + m.c(torch.cat([x, y := m.a(x), m.b(y)], 1)),
                a=conv(8, 4),
                b=conv(4, 4),
                c=conv(16, 8, 1),
            ),
        ),
        PICTURE,
    ),
    "hrnet": (
        lambda: head(
            8,
            Apply(
                high_resolution,
                a=conv(3, 8),
                b=conv(3, 8, 3, 2),
                up=conv(8, 8, 1, act=None),
                down=conv(8, 8, 3, 2, act=None),
            ),
        ),
        PICTURE,
    ),
    "unet": (lambda: Apply(unet, a=conv(3, 8), b=conv(8, 8), c=nn.Conv2d(16, 2, 1)), PICTURE),
    "poolformer": (
        lambda: head(
            8,
            nn.Conv2d(3, 8, 4, 4),
            residual(nn.GroupNorm(1, 8), nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
            residual(nn.GroupNorm(1, 8), nn.Conv2d(8, 16, 1), nn.GELU(), nn.Conv2d(16, 8, 1)),
        ),
        PICTURE,
    ),
    "convnext": (lambda: convnext(False), PICTURE),
    "convnext_v2": (lambda: convnext(True), PICTURE),
    "edgenext": (
        lambda: head(8, nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8), on_tokens(cross_covariance())),
        PICTURE,
    ),
    "efficientvit": (lambda: head(8, conv(3, 8, 3, 2, act=nn.Hardswish), linear_attention()), PICTURE),
    "mobilevit": (
        lambda: head(8, conv(3, 8, 3, 2, act=nn.SiLU), on_tokens(transformer()), conv(8, 8, 1, act=nn.SiLU)),
        PICTURE,
    ),
    "vit": (
        lambda: head(8, nn.Conv2d(3, 8, 4, 4), on_tokens(nn.Sequential(transformer(), nn.LayerNorm(8)))),
        PICTURE,
    ),
    "swin": (swin, PICTURE),
    "mixer": (
        lambda: head(
            8,
            nn.Conv2d(3, 8, 4, 4),
            on_tokens(
                Apply(
                    lambda m, x: x + m.mix(m.norm(x).transpose(1, 2)).transpose(1, 2),
                    norm=nn.LayerNorm(8),
                    mix=nn.Linear(16, 16),
                )
            ),
        ),
        PICTURE,
    ),
    "yolo": (
        lambda: Apply(detector, body=nn.Sequential(conv(3, 8, 3, 2, act=nn.SiLU), nn.Conv2d(8, 7, 3, 2, 1))),
        PICTURE,
    ),
    "style": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.InstanceNorm2d(8, affine=True),
            nn.ReLU(),
            nn.Conv2d(8, 3, 3, padding=1),
            nn.Tanh(),
        ),
        PICTURE,
    ),
    "llama": (lambda: nn.Sequential(transformer(RmsNorm), RmsNorm(8), nn.Linear(8, 5)), (1, 6, 8)),
    "conformer": (
        lambda: Apply(
            conformer,
            first=_feed(),
            attend=transformer(),
            wide=nn.Conv1d(8, 16, 1),
            depth=nn.Conv1d(8, 8, 3, padding=1, groups=8),
            norm=nn.BatchNorm1d(8),
            point=nn.Conv1d(8, 8, 1),
            second=_feed(),
            last=nn.LayerNorm(8),
        ),
        (1, 6, 8),
    ),
    "tcn": (
        lambda: nn.Sequential(
            nn.Conv1d(4, 8, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv1d(8, 8, 3, padding=4, dilation=4),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        (1, 4, 16),
    ),
    "voice": (
        lambda: Apply(
            spectrum,
            fourier=nn.Conv1d(1, 16, 8, 4, bias=False),
            conv=nn.Conv1d(8, 8, 3, padding=1),
            cell=nn.GRU(8, 6, batch_first=True),
            out=nn.Linear(6, 1),
        ),
        (1, 1, 40),
    ),
}


TOKENS = 30


def bert(m: Any, tokens: Tensor) -> Tensor:
    places = m.places(torch.arange(tokens.shape[1]))
    x = m.norm(m.words(tokens) + places + m.kinds(torch.zeros_like(tokens)))
    return F.log_softmax(m.out(m.body(x)), -1)


def gpt(m: Any, tokens: Tensor) -> Tensor:
    """Causal attention written by hand, with minus infinity where nothing may be seen."""
    x = m.words(tokens)
    q, k, v = m.qkv(m.norm(x)).chunk(3, -1)
    scores = (q @ k.transpose(1, 2)) * 8**-0.5
    seen = torch.tril(torch.ones(scores.shape[-2:])) == 0
    x = x + scores.masked_fill(seen, float("-inf")).softmax(-1) @ v
    return m.out(x + m.mlp(x))


def recognizer(m: Any, x: Tensor) -> Tensor:
    """Convolutions, a recurrence in both directions, log probabilities: text in pictures."""
    y = F.max_pool2d(m.conv(x), (16, 2)).squeeze(2).transpose(1, 2)
    return F.log_softmax(m.out(m.cell(y)[0]), -1)


NETWORKS |= {
    "bert": (
        lambda: Apply(
            bert, words=nn.Embedding(TOKENS, 8), places=nn.Embedding(6, 8), kinds=nn.Embedding(2, 8),
            norm=nn.LayerNorm(8), body=transformer(), out=nn.Linear(8, TOKENS),
        ),
        (1, 6),
    ),
    "gpt": (
        lambda: Apply(
            gpt, words=nn.Embedding(TOKENS, 8), norm=nn.LayerNorm(8), qkv=nn.Linear(8, 24), mlp=_feed(),
            out=nn.Linear(8, TOKENS),
        ),
        (1, 6),
    ),
    "super_resolution": (
        lambda: nn.Sequential(conv(3, 8), residual(conv(8, 8)), nn.Conv2d(8, 12, 3, padding=1),
                              nn.PixelShuffle(2)),
        PICTURE,
    ),
    "crnn": (
        lambda: Apply(
            recognizer, conv=conv(3, 8), cell=nn.GRU(8, 4, batch_first=True, bidirectional=True),
            out=nn.Linear(8, 5),
        ),
        PICTURE,
    ),
}  # fmt: skip


def make(name: str) -> tuple[nn.Module, list[tuple[Tensor, ...]]]:
    """A network with random weights, the same every time, and samples to calibrate with."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model = build().eval()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm1d):
            layer.running_mean.normal_(0, 0.2)
            layer.running_var.uniform_(0.5, 2)
    words = any(isinstance(layer, nn.Embedding) for layer in model.modules())
    return model, [(torch.randint(TOKENS, shape) if words else torch.randn(shape),) for _ in range(4)]


def main(names: list[str]) -> int:
    """Compile networks, all if none is named, and print how much of each is on the CPU."""
    from openneutron import compile_model

    warnings.simplefilter("ignore")
    print("| network | partitions | operators on the CPU | CPU's share of cycles |\n|---|---:|---:|---:|")
    for name in names or list(NETWORKS):
        model, samples = make(name)
        try:
            program = compile_model(model, samples[0], calibration=samples)
        except Exception as error:
            print(f"| {name} | {type(error).__name__}: {str(error).splitlines()[0][:80]} | | |", flush=True)
            continue
        share = program.cycles("cpu") / max(program.cycles(), 1)
        count = len(program.rejected)
        print(f"| {name} | {len(program.partitions)} | {count} | {share:.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
