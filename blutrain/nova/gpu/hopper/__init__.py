"""Contractions on sm_90a: TMA copies into a ring of shared-memory stages, warp-specialised wgmma, persistent blocks.

One kernel body serves bf16, f16 and TF32, every operand layout, batches, epilogues and split K. It always computes
tiles of D[p, q], p along the rows of wgmma and q along its columns:

    shared form    p = m, q = n; both factors from shared memory. TF32: both contiguous along k; bf16: any layout
    register form  TF32 with one factor contiguous along its own axis: that factor is p and passes through registers
                   (p = n computes the product transposed); the other one, contiguous along k, is q

Reading order: `problem` (what a kernel asks for), `addition` (sums that the memory makes) and `traffic` (operands of the
epilogue), `schedule`, `configure`, `cost` and `epilogue_cost` (the decisions and their prices), `shape` (axes, tiles, steps)
and `tiles` (shared memory, workspace), `operands` (tensor maps, copies, descriptors), `machine` (barriers, wgmma), `place`,
`sums` and `mainloop`, `pieces`, `values` and `epilogue` (from accumulators to results), `column_sums` and `row_sums`,
`block`, `staging` and `fetch` (results and matrices between shared memory and TMA), `exchange` (between blocks that split
k), `repack`, `split` and `columns` (the phases before and after), `contract` (the generator). `gpu.builder` writes the text.
"""
