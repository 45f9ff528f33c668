"""The LiteRT graph made ready for the NPU: checked, legalized, fused."""
