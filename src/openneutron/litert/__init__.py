"""LiteRT graphs as values: the typed IR, the .tflite file format, and graph-to-graph rewriting."""
