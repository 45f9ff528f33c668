"""What goes round torch, torchao or ExecuTorch for speed: `shortcuts` is the list and the switch."""
