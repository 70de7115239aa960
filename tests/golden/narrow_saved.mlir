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

// ===== the gradient that a product hands to a norm is rounded before the others are made
func.func @step(%g: tensor<4x16xf32>, %x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %r: tensor<4x8xf32>, %m: tensor<4x1xf32>, %d: tensor<4x1xf32>, %s: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>) {
  %0:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> (tensor<4x8xf32>, tensor<16x8xf32>, tensor<16xf32>)
  %1:2 = "nova.layer_norm_backward"(%0#0, %r, %m, %d, %s) {needs = [true, true, false], num_dims = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>)
  return %1#0, %1#1, %0#1, %0#2 : tensor<4x8xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x16xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<4x8xf32>, %arg4: tensor<4x1xf32>, %arg5: tensor<4x1xf32>, %arg6: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>) {
    %0 = "nova.linear_backward"(%arg0, %arg1, %arg2) {needs = [true, false, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %1 = "nova.cast"(%0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %2 = "nova.cast"(%1) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %3:2 = "nova.linear_backward"(%arg0, %arg1, %arg2) {needs = [false, true, true]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> (tensor<16x8xf32>, tensor<16xf32>)
    %4:2 = "nova.layer_norm_backward"(%2, %arg3, %arg4, %arg5, %arg6) {needs = [true, true, false], num_dims = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>, tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>)
    return %4#0, %4#1, %3#0, %3#1 : tensor<4x8xf32>, tensor<8xf32>, tensor<16x8xf32>, tensor<16xf32>
  }
}

// ===== the product has no other gradient, the norm no mean
func.func @step(%g: tensor<4x16xf32>, %x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %r: tensor<4x8xf32>, %d: tensor<4x1xf32>, %s: tensor<8xf32>) -> tensor<4x8xf32> {
  %0 = "nova.linear_backward"(%g, %x, %w) {needs = [true, false, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = "nova.rms_norm_backward"(%0, %r, %d, %s) {needs = [true, false], num_dims = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x16xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<4x8xf32>, %arg4: tensor<4x1xf32>, %arg5: tensor<8xf32>) -> tensor<4x8xf32> {
    %0 = "nova.linear_backward"(%arg0, %arg1, %arg2) {needs = [true, false, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
    %1 = "nova.cast"(%0) {dtype = bf16} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    %2 = "nova.cast"(%1) {dtype = f32} : (tensor<4x8xbf16>) -> tensor<4x8xf32>
    %3 = "nova.rms_norm_backward"(%2, %arg3, %arg4, %arg5) {needs = [true, false], num_dims = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<8xf32>) -> tensor<4x8xf32>
    return %3 : tensor<4x8xf32>
  }
}

// ===== another sum reads the gradient, too; an activation's backward is part of the product; nobody asks for a gradient
func.func @step(%g: tensor<4x16xf32>, %x: tensor<4x8xf32>, %w: tensor<16x8xf32>, %r: tensor<4x8xf32>, %d: tensor<4x1xf32>, %s: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<16x8xf32>) {
  %0 = "nova.linear_backward"(%g, %x, %w) {needs = [true, false, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %1 = "nova.rms_norm_backward"(%0, %r, %d, %s) {needs = [true, false], num_dims = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %2 = "nova.add"(%0, %r) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "nova.linear_backward"(%g, %r, %w) {needs = [true, false, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x8xf32>
  %4 = "nova.gelu_backward"(%3, %x) {approximate = "tanh"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = "nova.linear_backward"(%g, %x, %w) {needs = [false, true, false]} : (tensor<4x16xf32>, tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %1, %2, %4, %5 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<16x8xf32>
}
// ----- unchanged
