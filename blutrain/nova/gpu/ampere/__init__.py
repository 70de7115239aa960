"""Contractions on sm_80 and newer: cp.async into a ring of shared-memory stages, ldmatrix, mma.sync. Takes every product.

One kernel body serves bf16, f16, TF32, f32 (three TF32 products) and f64 (plain multiply-adds), every operand layout,
batches, prologues, epilogues and split k. Each factor travels by one of two ways: by cp.async, in pieces of 16, 8 or
4 bytes as its strides allow, or through registers, where it is computed (a prologue) or lies in no such order.

Reading order: `instruction` (the multiply instructions), `layout` (who holds which element), `problem` (what a kernel
asks for), `schedule` and `configure` (the decisions), `tiles` (sizes), `shared` (swizzled tiles), `stage` (global to
shared memory), `fragments` (shared memory to registers), `mainloop`, `predicated` and `elements` (operands and results by element),
`finish` and `columns` (from accumulators to results), `contract` (the generator).
"""
