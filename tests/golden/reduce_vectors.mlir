// ===== one row: a sum for each row of the weight
func.func @step(%x: tensor<1x4xf32>, %w: tensor<8x4xf32>) -> tensor<1x8xf32> {
  %0 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %1 = "nova.matmul"(%x, %0) : (tensor<1x4xf32>, tensor<4x8xf32>) -> tensor<1x8xf32>
  return %1 : tensor<1x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<1x4xf32>, %arg1: tensor<8x4xf32>) -> tensor<1x8xf32> {
    %0 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %1 = "nova.reshape"(%arg0) {shape = array<i64: 1, 1, 4>} : (tensor<1x4xf32>) -> tensor<1x1x4xf32>
    %2 = "nova.transpose"(%0) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %3 = "nova.reshape"(%2) {shape = array<i64: 1, 8, 4>} : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
    %4 = "nova.mul"(%1, %3) : (tensor<1x1x4xf32>, tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
    %5 = "nova.sum"(%4) {dims = array<i64: 2>, keepdim = false} : (tensor<1x8x4xf32>) -> tensor<1x8xf32>
    return %5 : tensor<1x8xf32>
  }
}

// ===== narrow floats are summed in f32
func.func @step(%x: tensor<2x3x4xbf16>, %y: tensor<2x4x1xbf16>) -> tensor<2x3x1xbf16> {
  %0 = "nova.matmul"(%x, %y) : (tensor<2x3x4xbf16>, tensor<2x4x1xbf16>) -> tensor<2x3x1xbf16>
  return %0 : tensor<2x3x1xbf16>
}
// -----
module {
  func.func @step(%arg0: tensor<2x3x4xbf16>, %arg1: tensor<2x4x1xbf16>) -> tensor<2x3x1xbf16> {
    %0 = "nova.cast"(%arg0) {dtype = f32} : (tensor<2x3x4xbf16>) -> tensor<2x3x4xf32>
    %1 = "nova.cast"(%arg1) {dtype = f32} : (tensor<2x4x1xbf16>) -> tensor<2x4x1xf32>
    %2 = "nova.reshape"(%0) {shape = array<i64: 2, 3, 1, 4>} : (tensor<2x3x4xf32>) -> tensor<2x3x1x4xf32>
    %3 = "nova.transpose"(%1) {perm = array<i64: 0, 2, 1>} : (tensor<2x4x1xf32>) -> tensor<2x1x4xf32>
    %4 = "nova.reshape"(%3) {shape = array<i64: 2, 1, 1, 4>} : (tensor<2x1x4xf32>) -> tensor<2x1x1x4xf32>
    %5 = "nova.mul"(%2, %4) : (tensor<2x3x1x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x3x1x4xf32>
    %6 = "nova.sum"(%5) {dims = array<i64: 3>, keepdim = false} : (tensor<2x3x1x4xf32>) -> tensor<2x3x1xf32>
    %7 = "nova.cast"(%6) {dtype = bf16} : (tensor<2x3x1xf32>) -> tensor<2x3x1xbf16>
    return %7 : tensor<2x3x1xbf16>
  }
}

// ===== matrices
func.func @step(%x: tensor<2x4xf32>, %y: tensor<4x8xf32>) -> tensor<2x8xf32> {
  %0 = "nova.matmul"(%x, %y) : (tensor<2x4xf32>, tensor<4x8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}
// ----- unchanged
