"""Programs that show how blutrain is used; each runs with `python -m examples.<name>.train`."""
