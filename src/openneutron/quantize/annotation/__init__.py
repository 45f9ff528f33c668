"""What is quantized and how: number formats, observers, and the notes on each node that torchao reads."""
