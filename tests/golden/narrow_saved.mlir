// ===== what a gelu and its backward read of a product
func.func @step(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %g: tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) {
  %0 = "nova.linear"(%x, %w) : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = "nova.gelu"(%0) {approximate = "tanh"} : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %2 = "nova.gelu_backward"(%g, %0) {approximate = "tanh"} : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1, %2 : tensor<4x16xf32>, tensor<4x16xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<4x16xf32>) -> (tensor<4x16xf32>, tensor<4x16xf32>) {
    %0 = "nova.linear"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
    %1 = "nova.cast"(%0) {dtype = bf16} : (tensor<4x16xf32>) -> tensor<4x16xbf16>
    %2 = "nova.cast"(%1) {dtype = f32} : (tensor<4x16xbf16>) -> tensor<4x16xf32>
    %3 = "nova.gelu"(%2) {approximate = "tanh"} : (tensor<4x16xf32>) -> tensor<4x16xf32>
    %4 = "nova.gelu_backward"(%arg2, %2) {approximate = "tanh"} : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
    return %3, %4 : tensor<4x16xf32>, tensor<4x16xf32>
  }
}

// ===== without a backward nothing is kept
func.func @step(%x: tensor<4x8xf32>, %w: tensor<16x8xf32>) -> tensor<4x16xf32> {
  %0 = "nova.linear"(%x, %w) : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = "nova.gelu"(%0) {approximate = "tanh"} : (tensor<4x16xf32>) -> tensor<4x16xf32>
  return %1 : tensor<4x16xf32>
}
// ----- unchanged

// ===== a residual sum reads the product, too; the other is f64
func.func @step(%x: tensor<4x8xf32>, %w: tensor<8x8xf32>, %g: tensor<4x8xf32>, %y: tensor<4x8xf64>, %v: tensor<8x8xf64>, %h: tensor<4x8xf64>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf64>) {
  %0 = "nova.linear"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = "nova.add"(%0, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "nova.gelu_backward"(%g, %0) {approximate = "tanh"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "nova.linear"(%y, %v) : (tensor<4x8xf64>, tensor<8x8xf64>) -> tensor<4x8xf64>
  %4 = "nova.gelu_backward"(%h, %3) {approximate = "tanh"} : (tensor<4x8xf64>, tensor<4x8xf64>) -> tensor<4x8xf64>
  return %1, %2, %4 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf64>
}
// ----- unchanged
