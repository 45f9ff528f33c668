"""Recipes for `executorch.export`: Neutron, Cortex-M, and both for an i.MX RT700."""
