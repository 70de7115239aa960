"""The passes, one a file, in the order that pipeline.py lists. A pass has `NAME` and `run(module, facts)`, which
changes the module in place; its docstring shows the IR before and after. driver.py runs them; shared reading and
editing of a step is dialect/graph.py.

May import: blutrain.tensor, blutrain.nova.dialect, mlir.
"""
