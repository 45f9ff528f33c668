"""Equalization: channels are scaled to like size across layers, in the way that is best at the outputs."""

from __future__ import annotations

from torch.fx import GraphModule

from openneutron.quantize.accuracy_methods.judged import JudgedModel, Progress
from openneutron.quantize.channel_scaling.choose import equalized
from openneutron.quantize.prepared_model.quality import Run, float_run


def apply(judged: JudgedModel, progress: Progress) -> tuple[GraphModule | None, str]:
    """Scale channels across layers."""
    if not judged.measured:  # it was better on folds, and the way is chosen by those it is fitted to
        judged.exact, judged.measured = float_run(judged.original, judged.samples[:4]), judged.samples[:4]
        scaled, _, text = equalized(
            judged.model, judged.samples, judged.judge, judged.plan.thorough, is_wanted=True
        )
        judged.exact, judged.measured = Run([], []), []
        return scaled, text
    scaled, _, text = equalized(judged.model, judged.samples, judged.judge, judged.plan.thorough)
    return scaled, text
