// ===== operands of products are rounded, each tensor once
func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>, %arg2: tensor<8x3xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>) {
  %0 = "nova.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %1 = "nova.matmul"(%arg0, %arg2) : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  return %0, %1 : tensor<4x2xf32>, tensor<4x3xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>, %arg2: tensor<8x3xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>) {
    %0 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %1 = "nova.cast"(%0) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %2 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<8x2xf32>) -> tensor<8x2xbf16>
    %3 = "nova.cast"(%2) {dtype = f32} : (tensor<8x2xbf16>) -> tensor<8x2xf32>
    %4 = "nova.matmul"(%1, %3) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
    %5 = "nova.cast"(%arg2) {dtype = bf16} : (tensor<8x3xf32>) -> tensor<8x3xbf16>
    %6 = "nova.cast"(%5) {dtype = f32} : (tensor<8x3xbf16>) -> tensor<8x3xf32>
    %7 = "nova.matmul"(%1, %6) : (tensor<4x8xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
    return %4, %7 : tensor<4x2xf32>, tensor<4x3xf32>
  }
}

// ===== f64 products and everything that is no product stay
func.func @step(%arg0: tensor<4x8xf64>, %arg1: tensor<8x2xf64>, %arg2: tensor<8xf32>) -> (tensor<4x2xf64>, tensor<8xf32>) {
  %0 = "nova.matmul"(%arg0, %arg1) : (tensor<4x8xf64>, tensor<8x2xf64>) -> tensor<4x2xf64>
  %1 = "nova.mul"(%arg2, %arg2) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<4x2xf64>, tensor<8xf32>
}
// ----- unchanged

// ===== a tensor read through views is rounded once, what is rounded already not again
func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<2x8xf32>, %arg2: tensor<8x8xbf16>) -> (tensor<4x2xf32>, tensor<4x8xf32>, tensor<2x8xf32>) {
  %0 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<2x8xf32>) -> tensor<8x2xf32>
  %1 = "nova.matmul"(%arg0, %0) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %2 = "nova.matmul"(%1, %arg1) : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
  %3 = "nova.cast"(%arg2) {dtype = f32} : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %4 = "nova.matmul"(%arg1, %3) : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
  return %1, %2, %4 : tensor<4x2xf32>, tensor<4x8xf32>, tensor<2x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<2x8xf32>, %arg2: tensor<8x8xbf16>) -> (tensor<4x2xf32>, tensor<4x8xf32>, tensor<2x8xf32>) {
    %0 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<2x8xf32>) -> tensor<8x2xf32>
    %1 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %2 = "nova.cast"(%1) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %3 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<2x8xf32>) -> tensor<2x8xbf16>
    %4 = "nova.transpose"(%3) {perm = array<i64: 1, 0>} : (tensor<2x8xbf16>) -> tensor<8x2xbf16>
    %5 = "nova.cast"(%4) {dtype = f32} : (tensor<8x2xbf16>) -> tensor<8x2xf32>
    %6 = "nova.matmul"(%2, %5) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
    %7 = "nova.cast"(%6) {dtype = bf16} : (tensor<4x2xf32>) -> tensor<4x2xbf16>
    %8 = "nova.cast"(%7) {dtype = f32} : (tensor<4x2xbf16>) -> tensor<4x2xf32>
    %9 = "nova.cast"(%3) {dtype = f32} : (tensor<2x8xbf16>) -> tensor<2x8xf32>
    %10 = "nova.matmul"(%8, %9) : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
    %11 = "nova.cast"(%arg2) {dtype = f32} : (tensor<8x8xbf16>) -> tensor<8x8xf32>
    %12 = "nova.cast"(%arg2) {dtype = f32} : (tensor<8x8xbf16>) -> tensor<8x8xf32>
    %13 = "nova.matmul"(%9, %12) : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    return %6, %10, %13 : tensor<4x2xf32>, tensor<4x8xf32>, tensor<2x8xf32>
  }
}
