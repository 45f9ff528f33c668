"""How much is done for accuracy: one word, or the methods by name. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from openneutron.diagnostics import fail, nearest

EQUALIZE, RANGES, CLIP, ROUND, BIAS = "equalize", "ranges", "clip", "round", "bias"
METHODS = {
    EQUALIZE: "channels are scaled to like size across layers, which leaves the float function as it is",
    RANGES: "the range of every tensor by what rounding and clipping it do at the outputs",
    CLIP: "weight ranges that make the least error of the layer's result",
    ROUND: "weights are rounded for the least error of the layer's result, and biases corrected",
    BIAS: "what quantization shifts the mean of a channel by is taken back in the bias",
}
WEIGHT_METHODS = (ROUND, BIAS)  # they change weights and biases
FAST, BALANCED, BEST = "fast", "balanced", "best"
LEVELS = {
    FAST: (),
    BALANCED: (EQUALIZE, RANGES, ROUND, BIAS),
    BEST: (EQUALIZE, RANGES, CLIP, ROUND, BIAS),
}
DEFAULT = BALANCED
HELP = (
    f"{FAST}: calibrate only; {BALANCED} (default): {', '.join(LEVELS[BALANCED])}; "
    f"{BEST}: all, thoroughly; or methods by name: {', '.join(METHODS)}"
)


@dataclass(frozen=True)
class AccuracyPlan:
    """The methods to use, in the order in which they are applied, and whether time may be spent on them."""

    name: str
    methods: tuple[str, ...]

    @property
    def thorough(self) -> bool:
        """Whether choices are made tensor by tensor, which takes minutes, or for the model at once."""
        return self.name == BEST


def find_plan(text: str | AccuracyPlan | None) -> AccuracyPlan:
    """The plan a word or a list of methods names; None is the default."""
    if isinstance(text, AccuracyPlan):
        return text
    text = text or DEFAULT
    if text in LEVELS:
        return AccuracyPlan(text, LEVELS[text])
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METHODS:
            known = [*LEVELS, *METHODS]
            fail("ON104", "option accuracy", f"there is no method '{name}'", nearest(name, known))
    if not names:
        fail("ON104", "option accuracy", "names no method", f"Known: {', '.join((*LEVELS, *METHODS))}.")
    return AccuracyPlan(text, tuple(name for name in METHODS if name in names))
