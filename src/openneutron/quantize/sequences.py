"""Quantizing a model that remembers: calibrated on frames, judged on whole sequences.

State is carried through a sequence in float, and what the quantizer sees of it are the frames. The figure
that is shown is of sequences that nothing was fitted to, each model carrying its own state: errors add up as
they will on the device, and how they do is told for some moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from openneutron.quantize.loop import calibrate_and_quantize
from openneutron.quantize.plan import AccuracyPlan
from openneutron.quantize.prepared_model.quality import Run, decibel, quality
from openneutron.quantize.refine import Refined
from openneutron.quantize.samples import EXAMPLES, check_sample
from openneutron.quantize.stateful import Frames, Inputs, WithStatePorts, one_sequence
from openneutron.tensors import results

MOMENTS = (1, 10, 100, 1000)
"""Frames of a sequence for which the error is told."""
_HELD = 4  # every so many sequences one is kept back; of fewer, so much of each


def quantize_sequences(
    model: WithStatePorts,
    sequences: Sequence[Frames],
    make_quantizer: Callable[[list[Inputs]], Quantizer],
    plan: AccuracyPlan,
    watch: Callable[[Refined], None] | None,
    progress: Callable[[float], None],
) -> GraphModule:
    """The quantized model, which remembers as the one it is made of does."""
    for frame in (frame for frames in sequences for frame in frames):
        check_sample(frame, 0)
    fitted, judged = kept_back(sequences)
    examples = [sample for _, sample in zip(range(EXAMPLES), model.spread(fitted), strict=False)]
    seen: list[Refined] = []
    made = calibrate_and_quantize(
        model.program,
        model.spread(fitted),
        make_quantizer(examples),
        accuracy=plan,
        watch=seen.append if watch else None,
        progress=progress,
    )
    quantized = model.with_buffers(made)
    if watch is not None:
        watch(_judged(model.original, quantized, judged, seen[0]))
    return quantized


def kept_back(sequences: Sequence[Frames]) -> tuple[list[Frames], list[tuple[Frames, int]]]:
    """Sequences to calibrate with, and others with the frame from which on they are judged.

    Of less than four sequences the end of each is kept back.
    """
    if len(sequences) >= _HELD:
        held = {i for i in range(len(sequences)) if i % _HELD == _HELD - 1}
        return [s for i, s in enumerate(sequences) if i not in held], [
            (sequences[i], 0) for i in sorted(held)
        ]
    cuts = [len(frames) - len(frames) // _HELD for frames in sequences]
    pairs = list(zip(sequences, cuts, strict=True))
    return [s[:cut] for s, cut in pairs], [(s, cut) for s, cut in pairs if cut < len(s)]


def outputs_over(module: torch.nn.Module, frames: Frames) -> list[list[Any]]:
    """What a module returns for each frame of a sequence."""
    with torch.no_grad(), one_sequence(module):
        return [[_kept(x) for x in results(module(*frame))] for frame in frames]


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _judged(
    exact: GraphModule, found: GraphModule, sequences: Sequence[tuple[Frames, int]], refined: Refined
) -> Refined:
    """What was done, with the error of whole sequences."""
    if not sequences:
        return replace(refined, quality=None, parts=[])
    pairs = [(outputs_over(exact, s), outputs_over(found, s), cut) for s, cut in sequences]
    good = [_floats(frame) for a, _, cut in pairs for frame in a[cut:]]
    bad = [_floats(frame) for _, b, cut in pairs for frame in b[cut:]]
    over = error_over_time([(list(map(_floats, a)), list(map(_floats, b))) for a, b, _ in pairs])
    return replace(refined, quality=quality(Run(good, good), Run(bad, bad)), parts=[], over_time=over)


def error_over_time(pairs: Sequence[tuple[list[list[Any]], list[list[Any]]]]) -> dict[int, float]:
    """The error in decibel at some frames of sequences: of what each output is there, over all sequences."""
    found = {}
    for moment in MOMENTS:
        signal = noise = 0.0
        for good, bad in pairs:
            if len(good) >= moment:
                for a, b in zip(good[moment - 1], bad[moment - 1], strict=True):
                    signal += float(torch.as_tensor(a).double().square().sum())
                    noise += float((torch.as_tensor(a).double() - torch.as_tensor(b).double()).square().sum())
        if signal or noise:
            found[moment] = decibel(signal, noise)
    return found


def _floats(values: Sequence[Any]) -> list[Any]:
    return [v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()]
