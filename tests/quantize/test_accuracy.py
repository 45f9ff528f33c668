"""The accuracy methods: what each claims, on networks drawn at random and on one made to fail."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.observer import HistogramObserver
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from openneutron import compile_model, quantize_model
from openneutron.diagnostics import OpenNeutronError
from openneutron.passes import BEFORE_PREPARE, PTQ, run_passes
from openneutron.quantize.accuracy_methods.bias import correct_bias
from openneutron.quantize.accuracy_methods.round import round_weights
from openneutron.quantize.annotation.observer import CHOICES, MINMAX, RangeObserver
from openneutron.quantize.channel_scaling.absorb import absorb
from openneutron.quantize.channel_scaling.choose import observe, reached
from openneutron.quantize.channel_scaling.cross_layer import equalize
from openneutron.quantize.plan import LEVELS, METHODS, find_plan
from openneutron.quantize.prepared_model.model import layers_of, value_of
from openneutron.quantize.prepared_model.quality import float_run, quality, quantized_run
from openneutron.quantize.prepared_model.walk import Walk
from openneutron.quantize.quantizer import NeutronQuantizer
from openneutron.quantize.refine import calibrate
from openneutron.quantize.samples import KEPT, Kept
from openneutron.quantize.train_start import equalize_to_train

CHANNELS = 8


class Drawn(nn.Module):
    """A network drawn at random from what equalization follows, with channels of very different size."""

    def __init__(self, seed: int, clamped: bool = False):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)

        def pick(count: int) -> int:
            return int(torch.randint(count, (), generator=generator))

        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.steps = nn.ModuleList()
        self.kinds = [pick(5) for _ in range(4)]
        for kind in self.kinds:
            if kind == 0:
                step = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS), nn.ReLU())
            elif kind == 1:
                step = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.LeakyReLU(0.1))
            elif kind == 2:
                step = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS))
            elif kind == 3:
                step = nn.ModuleList([nn.Conv2d(CHANNELS, CHANNELS, 1) for _ in range(2)])
                step.append(nn.Conv2d(2 * CHANNELS, CHANNELS, 1))
            else:
                step = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.MaxPool2d(2), nn.PReLU(CHANNELS))
            self.steps.append(step)
        self.clamp = nn.ReLU6() if clamped else nn.ReLU()
        self.last = nn.Linear(CHANNELS, 5)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight *= 30 ** torch.rand(len(module.weight), 1, 1, 1, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.clamp(self.first(x))
        for kind, step in zip(self.kinds, self.steps, strict=True):
            if kind == 2:  # a skip connection joins the scales of both sides
                x = torch.relu(x + step(x))
            elif kind == 3:
                left, right, join = step
                x = torch.relu(join(torch.cat([torch.relu(left(x)), torch.relu(right(x))], 1)))
            else:
                x = step(x)
        return self.last(x.mean((2, 3)))


def samples(count: int, seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    """Inputs."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(1, 3, 16, 16, generator=generator),) for _ in range(count)]


def prepared(module: nn.Module, per_channel: bool = False, inputs=None):
    """The model with observers in place."""
    exported = torch.export.export(module.eval(), inputs or samples(1)[0]).module(check_guards=False)
    return prepare_pt2e(run_passes(exported, BEFORE_PREPARE, PTQ), NeutronQuantizer(per_channel=per_channel))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("clamped", [False, True])
def test_equalization_leaves_the_float_function_as_it_is(seed, clamped):
    data = samples(4)
    model = prepared(Drawn(seed, clamped))
    observe(model, data)
    before = float_run(model, data)
    done = equalize(model, reached(model, data).tops)
    after = float_run(model, data)
    for a, b in zip(before.outputs, after.outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(a[0].abs().max()))
    assert done.channels > 0 and done.largest > 1.5


def _round_and_correct(step) -> None:
    round_weights(step)
    correct_bias(step)


def test_bias_correction_takes_the_shift_back_and_rounding_the_error():
    data = samples(16)
    shifts, errors = [], []
    for visit in (lambda step: None, correct_bias, _round_and_correct):
        model = prepared(Drawn(1))
        observe(model, data)
        exact = float_run(model, data)
        Walk(model, data).run(visit)
        found = quantized_run(model, data)
        difference = torch.stack([b[0] - a[0] for a, b in zip(exact.scores, found.scores, strict=True)])
        shifts.append(float(difference.mean(0).square().sum()))
        errors.append(float(difference.square().sum()))
    assert shifts[1] < shifts[0] / 2 and errors[2] < errors[0] / 2


class Rescaled(nn.Module):
    """Depthwise separable layers whose channels are scaled at random, which the float function hides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1)]
        for _ in range(3):
            layers += [nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS)]
            layers += [nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 1)]
        self.layers = nn.Sequential(*layers, nn.ReLU())
        self.last = nn.Linear(CHANNELS, 10)
        convs = [m for m in layers if isinstance(m, nn.Conv2d)]
        with torch.no_grad():
            for before, after in itertools.pairwise(convs):
                scale = 1000 ** torch.rand(CHANNELS)
                before.weight /= scale[:, None, None, None]
                before.bias /= scale
                after.weight *= scale[:, None, None, None] if after.groups > 1 else scale[:, None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(x).mean((2, 3)))


def test_a_layer_without_bias_gets_one():
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU())
    model = prepared(module)
    observe(model, samples(8))
    Walk(model, samples(8)).run(correct_bias)
    (layer,) = layers_of(model)
    assert layer.bias is not None and value_of(model, layer.bias).shape == (4,)
    assert module[0].bias is None  # the caller's model stays as it is


DISTRIBUTIONS = {
    "normal": lambda g: torch.randn(20000, generator=g),
    "relu": lambda g: torch.randn(20000, generator=g).relu(),
    "heavy": lambda g: torch.randn(20000, generator=g) ** 3,
    "exponential": lambda g: torch.rand(20000, generator=g).log().neg(),
    "shifted": lambda g: torch.rand(20000, generator=g) + 3,
    "outlier": lambda g: torch.cat([torch.randn(20000, generator=g), torch.tensor([300.0])]),
    "growing": lambda g: torch.randn(20000, generator=g) * torch.arange(20000) / 2000,
}


def _error(observer, values: torch.Tensor) -> float:
    scale, zero = observer.calculate_qparams()
    found = torch.fake_quantize_per_tensor_affine(values, float(scale), int(zero), -128, 127)
    return float((found - values).double().square().sum())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_range_is_at_least_as_good_as_torchaos(name):
    settings = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}
    values = DISTRIBUTIONS[name](torch.Generator().manual_seed(0))
    found = []
    for kind in (RangeObserver, HistogramObserver):
        observer = kind(**settings)
        for part in values.split(300):  # as many samples as need no margin for others
            observer(part)
        found.append(_error(observer, values))
    assert found[0] <= found[1] * 1.01  # what bins hide is less than a hundredth


def _seen(samples: Sequence[torch.Tensor]) -> RangeObserver:
    observer = RangeObserver(
        MINMAX, dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine
    )
    for sample in samples:
        observer(sample)
    return observer


def test_a_range_of_few_samples_has_room_for_what_others_reach():
    short, beyond = [], []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        samples = torch.randn(64, 300, generator=generator).exp().unbind()
        few, all_of_them = _seen(samples[:16]), _seen(samples)
        assert all_of_them.range() == (0.0, all_of_them.max_val) and few.range()[1] > few.max_val
        short.append(few.max_val / all_of_them.max_val)
        beyond.append(few.range()[1] / all_of_them.max_val)
    assert abs(statistics.fmean(beyond) - 1) < 0.5 * abs(statistics.fmean(short) - 1)


def test_a_limit_that_samples_have_in_common_is_the_end_of_the_range():
    generator = torch.Generator().manual_seed(0)
    clamped = [torch.randn(300, generator=generator).clamp(-5.0, 1.5) for _ in range(6)]
    assert _seen(clamped).range()[1] == 1.5 and _seen(clamped[:1]).range() == (float(clamped[0].min()), 1.5)


@pytest.mark.parametrize("choice", CHOICES)
def test_ranges_hold_zero_and_stay_within_what_was_seen(choice):
    observer = RangeObserver(
        choice, dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine
    )
    for value in 8 * (torch.zeros(4), torch.rand(100) + 1, torch.rand(100) * 50):
        observer(value)
    low, high = observer.range()
    assert low == 0 and 1 < high <= observer.max_val * 1.01
    empty = RangeObserver(dtype=torch.int8, quant_min=-128, quant_max=127, qscheme=torch.per_tensor_affine)
    assert float(empty.calculate_qparams()[0]) > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_what_was_seen_before_a_larger_value_stays_where_it_was(sign):
    settings = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}
    observer = RangeObserver("percentile", **settings)
    observer(sign * torch.rand(20000, generator=torch.Generator().manual_seed(0)))
    observer(torch.tensor([sign * 40.0]))
    low, high = observer.range()
    assert 0.95 < high - low < 1.1 and (low == 0) == (sign == 1)


@pytest.mark.parametrize("plan", ["balanced", "best"])
def test_a_plan_mends_what_a_scale_per_tensor_cannot_hold_and_is_the_same_each_time(plan):
    data, test = samples(16), samples(16, seed=9)
    runs = []
    for name in ("fast", plan, plan):
        model, refined = calibrate(prepared(Rescaled()), data, find_plan(name))
        exact = float_run(prepared(Rescaled()), test)
        runs.append((quality(exact, quantized_run(model, test)).sqnr_db, refined))
    (fast, _), (first, refined), (second, _) = runs
    assert first > fast + 6 and first == second
    assert [result.method for result in refined.results] == list(LEVELS[plan])
    assert any(result.kept for result in refined.results)
    assert refined.quality is not None and refined.quality.samples == 16


def test_every_method_can_be_named_alone_and_nothing_else():
    assert find_plan("bias,equalize").methods == ("equalize", "bias")
    for name in METHODS:
        assert find_plan(name).methods == (name,)
    with pytest.raises(OpenNeutronError, match="no method 'biass'"):
        find_plan("biass")


def test_what_is_not_a_number_is_named():
    data = samples(3)
    data[2][0][0, 1, 2, 3] = float("nan")
    with pytest.raises(
        OpenNeutronError, match="ON211: calibration sample 2, input 0: 1 of 768 values are NaN"
    ):
        quantize_model(Drawn(0).eval(), data)


def test_a_stream_is_not_kept():
    kept = Kept()
    assert sum(1 for _ in kept.watch(samples(1)[0] for _ in range(3 * KEPT))) == 3 * KEPT
    assert len(kept.samples) == KEPT


class Normed(nn.Module):
    """Convolutions with batch norms, and one without, between channels of very different size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        with torch.no_grad():
            scale = 100 ** torch.rand(16)
            self.norm.weight /= scale
            self.second.weight *= scale.reshape(1, -1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.relu(self.second(x))).mean((2, 3))


def test_training_starts_from_the_equalized_model():
    module, data = Normed(), samples(8)

    def runs() -> list[torch.Tensor]:
        """In training a norm takes the batch as its measure, in use what it has learned."""
        return [copy.deepcopy(training)(*data[0]) for training in trained]

    exported = [torch.export.export(module.train(mode), data[0]) for mode in (True, False)]
    trained = [program.module(check_guards=False) for program in exported]
    before = runs()
    results = [equalize_to_train(training, prepared(module), data) for training in trained]
    assert all(result.kept and result.after_db > result.before_db + 3 for result in results)
    torch.testing.assert_close(runs(), before, rtol=1e-4, atol=1e-4)


class Lifted(nn.Module):
    """Channels that are far from zero, which a layer with a border and one without read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1, groups=2)
        self.third, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)
        with torch.no_grad():
            self.first.weight *= 0.1
            self.first.bias[:6], self.first.bias[6:] = 40.0, -1.0
            self.third.bias[:] = 50.0
            self.last.weight -= self.last.weight.mean(1, keepdim=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.third(self.second(torch.relu(self.first(x))) * 0.01))
        return self.last(x.mean((2, 3)))


def test_high_biases_are_absorbed_where_nothing_is_cut():
    data = samples(4)
    model = prepared(Lifted())
    before = float_run(model, data)
    found = reached(model, data)
    assert absorb(model, found.lows, found.tops) == 6  # the channels behind a border of zeros stay
    after = float_run(model, data)
    for a, b in zip(before.outputs, after.outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    other = reached(model, data)
    for node, low in found.lows.items():
        assert bool((other.lows[node] <= low + 1e-4).all())


class Turned(nn.Module):
    """A layer whose channels are the last dimension, read by one whose channels are the one before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, width), nn.Conv1d(5, 4, 3)
        self.first.bias.data += 40

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


@pytest.mark.parametrize("width", [5, 7])
def test_tokens_are_not_taken_for_channels(width):
    data = [(torch.randn(1, 5, 6),) for _ in range(4)]
    model = prepared(Turned(width), inputs=data[0])
    before = float_run(model, data)
    found = reached(model, data)
    absorb(model, found.lows, found.tops)
    for a, b in zip(before.outputs, float_run(model, data).outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_a_model_without_a_derivative_compiles():
    """PyTorch's own backward pass fails for this one; ranges are then chosen without gradients."""

    class Scattered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 5), nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            y = self.first(x)[:, :, None].expand(-1, -1, 8, -1)
            return self.last(torch.scatter_add(torch.zeros(1, 4, 8, 5), 3, at, y))

    inputs = (torch.randn(1, 4, 5), torch.randint(0, 5, (1, 4, 8, 3)))
    assert compile_model(Scattered().eval(), inputs, calibration=[inputs] * 2).partitions
