"""Masks of softmaxes are as low as the scores need it."""

import pytest
import torch
from torch import nn

from openneutron import NeutronQuantizer, quantize_model

ALLOWED = torch.ones(24, 24, dtype=torch.bool).tril()


class Given(nn.Module):
    """The mask is an input."""

    def forward(self, x, allowed):
        return nn.functional.scaled_dot_product_attention(x, x.flip(-2), x, attn_mask=allowed)


class GivenAsNumbers(nn.Module):
    def forward(self, x, allowed):
        mask = torch.zeros(24, 24).masked_fill(~allowed, -torch.inf)
        return nn.functional.scaled_dot_product_attention(x, x.flip(-2), x, attn_mask=mask)


class Least(nn.Module):
    """As in transformers' models."""

    def forward(self, x, allowed):
        mask = (1.0 - allowed.to(x.dtype)) * torch.finfo(x.dtype).min
        return nn.functional.softmax(x @ x.flip(-2).transpose(-1, -2) / 8**0.5 + mask, -1) @ x


class Filled(nn.Module):
    def forward(self, x, allowed):
        scores = (x @ x.flip(-2).transpose(-1, -2) / 8**0.5).masked_fill(~allowed, -torch.inf)
        return torch.softmax(scores, -1) @ x


class Causal(nn.Module):
    def forward(self, x, allowed):
        return nn.functional.scaled_dot_product_attention(x, x.flip(-2), x, is_causal=True)


def samples(gain: float, seed: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 4, 24, 8, generator=generator) * gain, ALLOWED) for _ in range(16)]


def decibel(exact: torch.Tensor, found: torch.Tensor) -> float:
    return 10 * float(torch.log10(exact.square().sum() / (exact - found).square().sum()))


@pytest.mark.parametrize("module", [Given, GivenAsNumbers, Least, Filled, Causal], ids=lambda m: m.__name__)
@pytest.mark.parametrize(("gain", "least"), [(1.0, 28.0), (3.0, 21.0)])
def test_forbidden_places_stay_forbidden_however_far_apart_scores_are(module, gain, least):
    model = module().eval()
    quantized = quantize_model(model, samples(gain, 0), accuracy="fast")
    unseen = samples(gain, 1)
    exact = torch.stack([model(*sample) for sample in unseen])
    assert decibel(exact, torch.stack([quantized(*sample) for sample in unseen])) > least


class Biased(nn.Module):
    """What is added to the scores also says how near a place is; somebody else reads the second mask."""

    def __init__(self, shared: bool):
        super().__init__()
        distance = torch.arange(24.0) - torch.arange(24.0)[:, None]
        self.register_buffer("mask", (0.5 * distance).masked_fill(~ALLOWED, -torch.inf))
        if shared:
            self.mask = self.mask.clamp(min=-30.0)
        self.shared = shared

    def forward(self, x):
        weights = torch.softmax(x @ x.transpose(-1, -2) + self.mask, -1)
        return weights @ (self.mask @ x if self.shared else x)


class Near(nn.Module):
    """Scores that are very low, or zero, are no mask: elsewhere they are in between."""

    def forward(self, distance, bias):
        return torch.softmax(distance * -50.0 + bias, -1)


def test_a_distance_is_no_mask():
    far = 1 - torch.eye(8)
    exported = torch.export.export(Near(), (far, far.clone())).module(check_guards=False)
    canonical = NeutronQuantizer(
        examples=[(far, torch.zeros(8, 8)), (0.7 * far, far)]
    ).transform_for_annotation(exported)
    given = (torch.rand(8, 8) * 0.2, torch.randn(8, 8))
    torch.testing.assert_close(canonical(*given), Near()(*given))


@pytest.mark.parametrize("shared", [False, True])
def test_only_what_forbids_is_changed(shared):
    model, x = Biased(shared).eval(), torch.randn(1, 4, 24, 8)
    exported = torch.export.export(model, (x,)).module(check_guards=False)
    canonical = NeutronQuantizer(examples=[(x,)]).transform_for_annotation(exported)
    torch.testing.assert_close(canonical(x), model(x), rtol=1e-3, atol=1e-3)
