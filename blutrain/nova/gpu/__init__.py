"""The GPU half of nova: kernels for NVIDIA GPUs, and what runs them.

Reading order: `kernel` (what a generator returns); `generate` (which generator takes which kernel); the generators `map`,
`row`, `column`, `full`, `scan` and `scatter` on `emit*`, `ampere` and `hopper` on `builder`, all with functions by
`function`; `lower` and `assemble` (text to PTX to machine code),
`driver` (the CUDA driver through cuda-bindings), `launch*` (arguments, graph, scalars, profile), `executable`.
Imports the tensor package and nova's own modules; CuPy and cuda-bindings only inside functions, so that kernels are
made and assembled on machines without a GPU.
"""
