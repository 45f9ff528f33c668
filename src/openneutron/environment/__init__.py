"""The Python process it works in: installed versions, the module path, hooks on imports, where time goes."""
