// ===== a scaled tensor is scaled again for the backward pass
func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024xf32>, %arg2: tensor<1024x1024xf32>, %arg3: tensor<1024x1024xf32>) -> (tensor<512x1024xf32>, tensor<1024x1024xf32>) {
  %0 = "nova.mul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024xf32>) -> tensor<512x1024xf32>
  %1 = "nova.matmul"(%0, %arg2) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%1, %arg3) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %3 = "nova.matmul"(%2, %arg3) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %4 = "nova.transpose"(%0) {perm = array<i64: 1, 0>} : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
  %5 = "nova.matmul"(%4, %3) : (tensor<1024x512xf32>, tensor<512x1024xf32>) -> tensor<1024x1024xf32>
  return %3, %5 : tensor<512x1024xf32>, tensor<1024x1024xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024xf32>, %arg2: tensor<1024x1024xf32>, %arg3: tensor<1024x1024xf32>) -> (tensor<512x1024xf32>, tensor<1024x1024xf32>) {
    %0 = "nova.mul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024xf32>) -> tensor<512x1024xf32>
    %1 = "nova.matmul"(%0, %arg2) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%1, %arg3) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %3 = "nova.matmul"(%2, %arg3) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %4 = "nova.mul"(%arg0, %arg1) {nova.recompute} : (tensor<512x1024xf32>, tensor<1024xf32>) -> tensor<512x1024xf32>
    %5 = "nova.transpose"(%4) {perm = array<i64: 1, 0>} : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
    %6 = "nova.matmul"(%5, %3) : (tensor<1024x512xf32>, tensor<512x1024xf32>) -> tensor<1024x1024xf32>
    return %3, %6 : tensor<512x1024xf32>, tensor<1024x1024xf32>
  }
}

// ===== from a value that the backward keeps anyway, and from row statistics, which are small
func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>) -> (tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>) {
  %0 = "nova.matmul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %1 = "nova.mean"(%0) {dims = array<i64: 1>, keepdim = true} : (tensor<512x1024xf32>) -> tensor<512x1xf32>
  %2 = "nova.sub"(%0, %1) : (tensor<512x1024xf32>, tensor<512x1xf32>) -> tensor<512x1024xf32>
  %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %5 = "nova.matmul"(%4, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %6 = "nova.transpose"(%5) {perm = array<i64: 1, 0>} : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
  %7 = "nova.matmul"(%6, %2) : (tensor<1024x512xf32>, tensor<512x1024xf32>) -> tensor<1024x1024xf32>
  %8 = "nova.mul"(%5, %0) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %4, %7, %8 : tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>) -> (tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>) {
    %0 = "nova.matmul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %1 = "nova.mean"(%0) {dims = array<i64: 1>, keepdim = true} : (tensor<512x1024xf32>) -> tensor<512x1xf32>
    %2 = "nova.sub"(%0, %1) : (tensor<512x1024xf32>, tensor<512x1xf32>) -> tensor<512x1024xf32>
    %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %5 = "nova.matmul"(%4, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %6 = "nova.transpose"(%5) {perm = array<i64: 1, 0>} : (tensor<512x1024xf32>) -> tensor<1024x512xf32>
    %7 = "nova.sub"(%0, %1) {nova.recompute} : (tensor<512x1024xf32>, tensor<512x1xf32>) -> tensor<512x1024xf32>
    %8 = "nova.matmul"(%6, %7) : (tensor<1024x512xf32>, tensor<512x1024xf32>) -> tensor<1024x1024xf32>
    %9 = "nova.mul"(%5, %0) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
    return %4, %8, %9 : tensor<512x1024xf32>, tensor<1024x1024xf32>, tensor<512x1024xf32>
  }
}

// ===== a sum of a product that is not kept would only move the cost: saved
func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>, %arg2: tensor<1024xf32>) -> tensor<512x1024xf32> {
  %0 = "nova.matmul"(%arg0, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %1 = "nova.add"(%0, %arg2) : (tensor<512x1024xf32>, tensor<1024xf32>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%1, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %5 = "nova.mul"(%4, %1) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %5 : tensor<512x1024xf32>
}
// ----- unchanged

// ===== dear work is saved as long as there is memory
module attributes {nova.memory_limit = 1000000000 : i64} {
  func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>) -> tensor<512x1024xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %1 = "nova.exp"(%0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%1, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %5 = "nova.mul"(%4, %1) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
    return %5 : tensor<512x1024xf32>
  }
}
// ----- unchanged

// ===== dear work is done again over the memory limit
module attributes {nova.memory_limit = 1000000 : i64} {
  func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>) -> tensor<512x1024xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %1 = "nova.exp"(%0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%1, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %5 = "nova.mul"(%4, %1) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
    return %5 : tensor<512x1024xf32>
  }
}
// -----
module attributes {nova.memory_limit = 1000000 : i64} {
  func.func @step(%arg0: tensor<512x1024xf32>, %arg1: tensor<1024x1024xf32>) -> tensor<512x1024xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %1 = "nova.exp"(%0) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%1, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %3 = "nova.matmul"(%2, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %4 = "nova.matmul"(%3, %arg1) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
    %5 = "nova.exp"(%arg0) {nova.recompute} : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %6 = "nova.exp"(%5) {nova.recompute} : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
    %7 = "nova.mul"(%4, %6) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
    return %7 : tensor<512x1024xf32>
  }
}

// ===== small values, and readers that are near, stay
func.func @step(%arg0: tensor<64x64xf32>, %arg1: tensor<64x64xf32>, %arg2: tensor<512x1024xf32>, %arg3: tensor<1024x1024xf32>) -> (tensor<64x64xf32>, tensor<512x1024xf32>) {
  %0 = "nova.neg"(%arg0) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "nova.matmul"(%0, %arg1) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = "nova.matmul"(%1, %arg1) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %3 = "nova.matmul"(%2, %0) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %4 = "nova.neg"(%arg2) : (tensor<512x1024xf32>) -> tensor<512x1024xf32>
  %5 = "nova.matmul"(%4, %arg3) : (tensor<512x1024xf32>, tensor<1024x1024xf32>) -> tensor<512x1024xf32>
  %6 = "nova.mul"(%5, %4) : (tensor<512x1024xf32>, tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %3, %6 : tensor<64x64xf32>, tensor<512x1024xf32>
}
// ----- unchanged
