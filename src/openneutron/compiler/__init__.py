"""The open converter's compiler: LiteRT graph in, microcode out. `compile.py` has the stages in order."""
