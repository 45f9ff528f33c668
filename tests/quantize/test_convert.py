"""Conversion does not look for what only training leaves."""

import torch
from torch import nn
from torchao.quantization.pt2e import qat_utils

from openneutron import compile_model
from openneutron.fx import op_name
from openneutron.quantize.convert import hide_norms, show_norms


def network():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    norm.running_mean.uniform_(-1, 1)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), norm, nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4)).eval()


def test_an_unfolded_batch_norm_costs_no_search_for_patterns_of_training(monkeypatch):
    def search(*args, **kwargs):
        raise AssertionError("torchao exports patterns of training")

    monkeypatch.setattr(qat_utils, "_fold_conv_bn_qat_helper", search)
    inputs = (torch.randn(1, 3, 8, 8),)
    program = compile_model(network(), inputs, calibration=[inputs])
    assert program.rejected == ()
    assert program.verification is not None and not program.verification.skipped


def test_a_hidden_batch_norm_computes_the_same():
    inputs = (torch.randn(1, 3, 8, 8),)
    model = torch.export.export(network(), inputs).module(check_guards=False)
    before, names = model(*inputs), [op_name(n) for n in model.graph.nodes]
    hidden = hide_norms(model)
    assert "aten.batch_norm.default" not in [op_name(n) for n in hidden.graph.nodes]
    torch.testing.assert_close(hidden(*inputs), before)
    assert [op_name(n) for n in show_norms(hidden).graph.nodes] == names
