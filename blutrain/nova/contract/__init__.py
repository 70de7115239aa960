"""Contract kernels as every target sees them: what is computed, not how.

Reading order: `form` (axes, factors, stores and reductions as expressions of the product), `read` (a kernel's body as
such a form), `combine` (the reductions of an epilogue). The generators of `cpu`, `gpu.ampere` and `gpu.hopper` start
here. Imports nova's kernel, clone and emitter.
"""
