"""Operators become kernel calls."""
