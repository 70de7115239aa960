// ===== equal operations become one
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "nova.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "nova.neg"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  %4 = "nova.add"(%2, %3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %4 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.add"(%1, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}

// ===== other attributes, other operands, other types
func.func @step(%arg0: tensor<4x4xf32>, %arg1: tensor<i64>, %arg2: tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<f32>, tensor<f64>) {
  %0 = "nova.sum"(%arg0) {dims = array<i64: 0>, keepdim = false} : (tensor<4x4xf32>) -> tensor<4xf32>
  %1 = "nova.sum"(%arg0) {dims = array<i64: 1>, keepdim = false} : (tensor<4x4xf32>) -> tensor<4xf32>
  %2 = "nova.random_bits"(%arg1, %arg2) {shape = array<i64: 2>, site = 0} : (tensor<i64>, tensor<i64>) -> tensor<2xi32>
  %3 = "nova.random_bits"(%arg1, %arg2) {shape = array<i64: 2>, site = 1} : (tensor<i64>, tensor<i64>) -> tensor<2xi32>
  %4 = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %5 = "nova.constant"() {value = 1.0 : f64} : () -> tensor<f64>
  return %0, %1, %2, %3, %4, %5 : tensor<4xf32>, tensor<4xf32>, tensor<2xi32>, tensor<2xi32>, tensor<f32>, tensor<f64>
}
// ----- unchanged

// ===== checks are not merged, nor is what is marked to be computed again
func.func @step(%arg0: tensor<i32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  "nova.check"(%arg0) {index = 0, message = "bad"} : (tensor<i32>) -> ()
  "nova.check"(%arg0) {index = 0, message = "bad"} : (tensor<i32>) -> ()
  %0 = "nova.exp"(%arg1) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.exp"(%arg1) {nova.recompute} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
// ----- unchanged
