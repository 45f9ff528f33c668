"""LiteRT by its former name, which ExecuTorch's tests look for."""

from types import SimpleNamespace

from ai_edge_litert.interpreter import Interpreter, OpResolverType

experimental = SimpleNamespace(OpResolverType=OpResolverType)

__all__ = ["Interpreter", "experimental"]
