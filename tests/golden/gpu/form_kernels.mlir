// ===== what a product reads is made by a kernel of its own; the transposed one by the product that loads its operand
func.func @step(%x: tensor<64x32xf32>, %w: tensor<16x32xf32>, %z: tensor<64x16xf32>) -> (tensor<64x16xf32>, tensor<16x16xf32>) {
  %0 = "nova.exp"(%x) : (tensor<64x32xf32>) -> tensor<64x32xf32>
  %1 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %2 = "nova.matmul"(%0, %1) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %3 = "nova.mul"(%2, %z) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %4 = "nova.exp"(%z) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %5 = "nova.transpose"(%4) {nova.store, perm = array<i64: 1, 0>} : (tensor<64x16xf32>) -> tensor<16x64xf32>
  %6 = "nova.matmul"(%5, %3) : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
  return %3, %6 : tensor<64x16xf32>, tensor<16x16xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<64x32xf32>, %arg1: tensor<16x32xf32>, %arg2: tensor<64x16xf32>) -> (tensor<64x16xf32>, tensor<16x16xf32>) {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg3: tensor<64x32xf32>):
      %3 = "nova.exp"(%arg3) : (tensor<64x32xf32>) -> tensor<64x32xf32>
      "nova.yield"(%3) : (tensor<64x32xf32>) -> ()
    }) {anchor = "map"} : (tensor<64x32xf32>) -> tensor<64x32xf32>
    %1:2 = "nova.kernel"(%arg1, %0, %arg2) ({
    ^bb0(%arg3: tensor<16x32xf32>, %arg4: tensor<64x32xf32>, %arg5: tensor<64x16xf32>):
      %3 = "nova.transpose"(%arg3) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
      %4 = "nova.matmul"(%arg4, %3) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      %5 = "nova.mul"(%4, %arg5) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
      %6 = "nova.exp"(%arg5) : (tensor<64x16xf32>) -> tensor<64x16xf32>
      %7 = "nova.transpose"(%6) {nova.store, perm = array<i64: 1, 0>} : (tensor<64x16xf32>) -> tensor<16x64xf32>
      "nova.yield"(%5, %7) : (tensor<64x16xf32>, tensor<16x64xf32>) -> ()
    }) {anchor = "contract"} : (tensor<16x32xf32>, tensor<64x32xf32>, tensor<64x16xf32>) -> (tensor<64x16xf32>, tensor<16x64xf32>)
    %2 = "nova.kernel"(%1#1, %1#0) ({
    ^bb0(%arg3: tensor<16x64xf32>, %arg4: tensor<64x16xf32>):
      %3 = "nova.matmul"(%arg3, %arg4) : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
      "nova.yield"(%3) : (tensor<16x16xf32>) -> ()
    }) {anchor = "contract"} : (tensor<16x64xf32>, tensor<64x16xf32>) -> tensor<16x16xf32>
    return %1#0, %2 : tensor<64x16xf32>, tensor<16x16xf32>
  }
}

// ===== the rows of a product summed with it, a kernel that a flag makes needless
func.func @step(%x: tensor<64x32xf32>, %w: tensor<16x32xf32>) -> (tensor<64x16xf32>, tensor<64xf32>) {
  %1 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %2 = "nova.matmul"(%x, %1) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %3 = "nova.exp"(%2) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %4 = "nova.sum"(%3) {dims = array<i64: 1>, keepdim = false, nova.with_product} : (tensor<64x16xf32>) -> tensor<64xf32>
  %5 = "nova.constant"() {value = 9.0 : f32} : () -> tensor<f32>
  %6 = "nova.lt"(%4, %5) : (tensor<64xf32>, tensor<f32>) -> tensor<64xi1>
  %7 = "nova.cast"(%6) {dtype = i32} : (tensor<64xi1>) -> tensor<64xi32>
  %8 = "nova.amin"(%7) {dims = array<i64: 0>, keepdim = false} : (tensor<64xi32>) -> tensor<i32>
  %9 = "nova.cast"(%8) {dtype = i1} : (tensor<i32>) -> tensor<i1>
  %10 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %11 = "nova.matmul"(%x, %10) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %12 = "nova.where"(%9, %3, %11) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  return %12, %4 : tensor<64x16xf32>, tensor<64xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<64x32xf32>, %arg1: tensor<16x32xf32>) -> (tensor<64x16xf32>, tensor<64xf32>) {
    %0:2 = "nova.kernel"(%arg1, %arg0) ({
    ^bb0(%arg2: tensor<16x32xf32>, %arg3: tensor<64x32xf32>):
      %3 = "nova.transpose"(%arg2) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
      %4 = "nova.matmul"(%arg3, %3) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      %5 = "nova.exp"(%4) : (tensor<64x16xf32>) -> tensor<64x16xf32>
      %6 = "nova.sum"(%5) {dims = array<i64: 1>, keepdim = false, nova.with_product} : (tensor<64x16xf32>) -> tensor<64xf32>
      "nova.yield"(%5, %6) : (tensor<64x16xf32>, tensor<64xf32>) -> ()
    }) {anchor = "contract"} : (tensor<16x32xf32>, tensor<64x32xf32>) -> (tensor<64x16xf32>, tensor<64xf32>)
    %1 = "nova.kernel"(%0#1) ({
    ^bb0(%arg2: tensor<64xf32>):
      %3 = "nova.constant"() {value = 9.000000e+00 : f32} : () -> tensor<f32>
      %4 = "nova.lt"(%arg2, %3) : (tensor<64xf32>, tensor<f32>) -> tensor<64xi1>
      %5 = "nova.cast"(%4) {dtype = i32} : (tensor<64xi1>) -> tensor<64xi32>
      %6 = "nova.amin"(%5) {dims = array<i64: 0>, keepdim = false} : (tensor<64xi32>) -> tensor<i32>
      "nova.yield"(%6) : (tensor<i32>) -> ()
    }) {anchor = "row"} : (tensor<64xf32>) -> tensor<i32>
    %2 = "nova.kernel"(%1, %arg1, %arg0, %0#0) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<16x32xf32>, %arg4: tensor<64x32xf32>, %arg5: tensor<64x16xf32>):
      %3 = "nova.cast"(%arg2) {dtype = i1} : (tensor<i32>) -> tensor<i1>
      %4 = "nova.transpose"(%arg3) {perm = array<i64: 1, 0>} : (tensor<16x32xf32>) -> tensor<32x16xf32>
      %5 = "nova.matmul"(%arg4, %4) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      %6 = "nova.where"(%3, %arg5, %5) : (tensor<i1>, tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
      "nova.yield"(%6) : (tensor<64x16xf32>) -> ()
    }) {anchor = "contract", nova.keep = array<i64: 3>, nova.skip = 0 : i64} : (tensor<i32>, tensor<16x32xf32>, tensor<64x32xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
    return %2, %0#1 : tensor<64x16xf32>, tensor<64xf32>
  }
}

// ===== bf16 factors are stored narrow, and only so
func.func @step(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = "nova.exp"(%x) : (tensor<64x32xf32>) -> tensor<64x32xf32>
  %1 = "nova.cast"(%0) {dtype = bf16} : (tensor<64x32xf32>) -> tensor<64x32xbf16>
  %2 = "nova.cast"(%1) {dtype = f32} : (tensor<64x32xbf16>) -> tensor<64x32xf32>
  %3 = "nova.cast"(%w) {dtype = bf16} : (tensor<32x16xf32>) -> tensor<32x16xbf16>
  %4 = "nova.cast"(%3) {dtype = f32} : (tensor<32x16xbf16>) -> tensor<32x16xf32>
  %5 = "nova.matmul"(%2, %4) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %5 : tensor<64x16xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<64x32xf32>, %arg1: tensor<32x16xf32>) -> tensor<64x16xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<64x32xf32>):
      %3 = "nova.exp"(%arg2) : (tensor<64x32xf32>) -> tensor<64x32xf32>
      %4 = "nova.cast"(%3) {dtype = bf16} : (tensor<64x32xf32>) -> tensor<64x32xbf16>
      "nova.yield"(%4) : (tensor<64x32xbf16>) -> ()
    }) {anchor = "map"} : (tensor<64x32xf32>) -> tensor<64x32xbf16>
    %1 = "nova.kernel"(%arg1) ({
    ^bb0(%arg2: tensor<32x16xf32>):
      %3 = "nova.cast"(%arg2) {dtype = bf16} : (tensor<32x16xf32>) -> tensor<32x16xbf16>
      "nova.yield"(%3) : (tensor<32x16xbf16>) -> ()
    }) {anchor = "map"} : (tensor<32x16xf32>) -> tensor<32x16xbf16>
    %2 = "nova.kernel"(%0, %1) ({
    ^bb0(%arg2: tensor<64x32xbf16>, %arg3: tensor<32x16xbf16>):
      %3 = "nova.cast"(%arg2) {dtype = f32} : (tensor<64x32xbf16>) -> tensor<64x32xf32>
      %4 = "nova.cast"(%arg3) {dtype = f32} : (tensor<32x16xbf16>) -> tensor<32x16xf32>
      %5 = "nova.matmul"(%3, %4) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
      "nova.yield"(%5) : (tensor<64x16xf32>) -> ()
    }) {anchor = "contract"} : (tensor<64x32xbf16>, tensor<32x16xbf16>) -> tensor<64x16xf32>
    return %2 : tensor<64x16xf32>
  }
}

// ===== rows of a table that are summed are gathered by the kernel that sums them
func.func @step(%table: tensor<10x64xf32>, %ids: tensor<32xi64>, %x: tensor<32x64xf32>) -> (tensor<32x64xf32>, tensor<32xf32>) {
  %0 = "nova.take"(%table, %ids) {dim = 0 : i64} : (tensor<10x64xf32>, tensor<32xi64>) -> tensor<32x64xf32>
  %1 = "nova.mul"(%0, %x) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
  %2 = "nova.sum"(%1) {dims = array<i64: 1>, keepdim = false} : (tensor<32x64xf32>) -> tensor<32xf32>
  return %0, %2 : tensor<32x64xf32>, tensor<32xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<10x64xf32>, %arg1: tensor<32xi64>, %arg2: tensor<32x64xf32>) -> (tensor<32x64xf32>, tensor<32xf32>) {
    %0:2 = "nova.kernel"(%arg0, %arg1, %arg2) ({
    ^bb0(%arg3: tensor<10x64xf32>, %arg4: tensor<32xi64>, %arg5: tensor<32x64xf32>):
      %1 = "nova.take"(%arg3, %arg4) {dim = 0 : i64} : (tensor<10x64xf32>, tensor<32xi64>) -> tensor<32x64xf32>
      %2 = "nova.mul"(%1, %arg5) : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<32x64xf32>
      %3 = "nova.sum"(%2) {dims = array<i64: 1>, keepdim = false} : (tensor<32x64xf32>) -> tensor<32xf32>
      "nova.yield"(%1, %3) : (tensor<32x64xf32>, tensor<32xf32>) -> ()
    }) {anchor = "row"} : (tensor<10x64xf32>, tensor<32xi64>, tensor<32x64xf32>) -> (tensor<32x64xf32>, tensor<32xf32>)
    return %0#0, %0#1 : tensor<32x64xf32>, tensor<32xf32>
  }
}
