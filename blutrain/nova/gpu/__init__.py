"""The GPU half of nova: kernels for NVIDIA GPUs, and what runs them.

Reading order: `kernel` (what a generator returns), the generators, `lower` and `assemble` (text to PTX to machine code),
`driver` (the CUDA driver through cuda-bindings), `launch*` (arguments, graph, scalars, profile), `executable`.
Imports the tensor package and nova's own modules; CuPy and cuda-bindings only inside functions, so that kernels are
made and assembled on machines without a GPU.
"""
