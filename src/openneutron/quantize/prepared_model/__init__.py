"""A model with observers in place, as the accuracy methods see, run, copy and judge it."""
