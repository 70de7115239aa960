// ===== integers are multiplied and summed
func.func @step(%x: tensor<3x4xi32>, %y: tensor<4x5xi32>) -> tensor<3x5xi32> {
  %0 = "nova.matmul"(%x, %y) : (tensor<3x4xi32>, tensor<4x5xi32>) -> tensor<3x5xi32>
  return %0 : tensor<3x5xi32>
}
// -----
module {
  func.func @step(%arg0: tensor<3x4xi32>, %arg1: tensor<4x5xi32>) -> tensor<3x5xi32> {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 3, 1, 4>} : (tensor<3x4xi32>) -> tensor<3x1x4xi32>
    %1 = "nova.transpose"(%arg1) {perm = array<i64: 1, 0>} : (tensor<4x5xi32>) -> tensor<5x4xi32>
    %2 = "nova.reshape"(%1) {shape = array<i64: 1, 5, 4>} : (tensor<5x4xi32>) -> tensor<1x5x4xi32>
    %3 = "nova.mul"(%0, %2) : (tensor<3x1x4xi32>, tensor<1x5x4xi32>) -> tensor<3x5x4xi32>
    %4 = "nova.sum"(%3) {dims = array<i64: 2>, keepdim = false} : (tensor<3x5x4xi32>) -> tensor<3x5xi64>
    %5 = "nova.cast"(%4) {dtype = i32} : (tensor<3x5xi64>) -> tensor<3x5xi32>
    return %5 : tensor<3x5xi32>
  }
}

// ===== floats are left to the generators of products
func.func @step(%x: tensor<3x4xf32>, %y: tensor<4x5xf32>) -> tensor<3x5xf32> {
  %0 = "nova.matmul"(%x, %y) : (tensor<3x4xf32>, tensor<4x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}
// ----- unchanged

// ===== running sums of narrow integers
func.func @step(%x: tensor<3x4xui8>) -> tensor<3x4xi64> {
  %0 = "nova.cumsum"(%x) {dim = 1 : i64} : (tensor<3x4xui8>) -> tensor<3x4xi64>
  return %0 : tensor<3x4xi64>
}
// -----
module {
  func.func @step(%arg0: tensor<3x4xui8>) -> tensor<3x4xi64> {
    %0 = "nova.cast"(%arg0) {dtype = i64} : (tensor<3x4xui8>) -> tensor<3x4xi64>
    %1 = "nova.cumsum"(%0) {dim = 1 : i64} : (tensor<3x4xi64>) -> tensor<3x4xi64>
    return %1 : tensor<3x4xi64>
  }
}
