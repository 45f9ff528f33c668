"""Recipes for `executorch.export`: Neutron, Cortex-M, and both."""
