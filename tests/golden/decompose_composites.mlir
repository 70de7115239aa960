// ===== relu in simple primitives
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.relu"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.constant"() {value = 0.000000e+00 : f32} : () -> tensor<f32>
    %1 = "nova.lt"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xi1>
    %2 = "nova.constant"() {value = 0.000000e+00 : f32} : () -> tensor<f32>
    %3 = "nova.where"(%1, %2, %arg0) : (tensor<4xi1>, tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
    return %3 : tensor<4xf32>
  }
}

// ===== numbers known at run time keep float64 until they meet a tensor
func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<f64> {nova.role = "scalar"}, %arg2: tensor<i64> {nova.role = "scalar"}, %arg3: tensor<i64> {nova.role = "scalar"}) -> tensor<4xf32> {
  %0 = "nova.dropout"(%arg0, %arg2, %arg3) {p = 0.5, site = 3} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<f64> {nova.role = "scalar"}, %arg2: tensor<i64> {nova.role = "scalar"}, %arg3: tensor<i64> {nova.role = "scalar"}) -> tensor<4xf32> {
    %0 = "nova.constant"() {value = 2.000000e+00 : f32} : () -> tensor<f32>
    %1 = "nova.mul"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = "nova.random_bits"(%arg2, %arg3) {device = "cpu", shape = array<i64: 4>, site = 3 : i64} : (tensor<i64>, tensor<i64>) -> tensor<4xi32>
    %3 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %4 = "nova.bitwise_xor"(%2, %3) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi32>
    %5 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %6 = "nova.lt"(%4, %5) : (tensor<4xi32>, tensor<i32>) -> tensor<4xi1>
    %7 = "nova.constant"() {value = 0.000000e+00 : f32} : () -> tensor<f32>
    %8 = "nova.where"(%6, %1, %7) : (tensor<4xi1>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %8 : tensor<4xf32>
  }
}

// ===== a product of a batch of rows with its bias
func.func @step(%arg0: tensor<2x3x8xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<4xf32>) -> tensor<2x3x4xf32> {
  %0 = "nova.linear"(%arg0, %arg1, %arg2) : (tensor<2x3x8xf32>, tensor<4x8xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
  return %0 : tensor<2x3x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<2x3x8xf32>, %arg1: tensor<4x8xf32>, %arg2: tensor<4xf32>) -> tensor<2x3x4xf32> {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 6, 8>} : (tensor<2x3x8xf32>) -> tensor<6x8xf32>
    %1 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %2 = "nova.matmul"(%0, %1) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
    %3 = "nova.add"(%2, %arg2) : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
    %4 = "nova.reshape"(%3) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
    return %4 : tensor<2x3x4xf32>
  }
}

// ===== simple primitives stay
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// ----- unchanged
