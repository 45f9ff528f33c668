"""Order of the operators, and where tensors lie."""
