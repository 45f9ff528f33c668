"""ExecuTorch's own tests over the open converter, and its decisions beside ours."""
