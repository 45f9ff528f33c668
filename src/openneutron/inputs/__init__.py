"""What users bring: a model in any form (`source`), samples to calibrate and run it with, seeds."""
