"""Commands that make something of a model: compile, convert, merge-kernels; and the options they share."""
