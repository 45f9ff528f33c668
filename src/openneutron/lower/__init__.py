"""From a delegated Edge program to a LiteRT graph."""
