// ===== a gradient of weights: the factor made for it is stored transposed
module attributes {nova.precision = "tf32"} {
func.func @step(%e: tensor<1024x512xf32>, %x: tensor<1024x384xf32>, %s: tensor<1024x1xf32>) -> tensor<512x384xf32> {
  %0 = "nova.mul"(%x, %s) : (tensor<1024x384xf32>, tensor<1024x1xf32>) -> tensor<1024x384xf32>
  %1 = "nova.transpose"(%e) {perm = array<i64: 1, 0>} : (tensor<1024x512xf32>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%1, %0) : (tensor<512x1024xf32>, tensor<1024x384xf32>) -> tensor<512x384xf32>
  return %2 : tensor<512x384xf32>
}
}
// -----
module attributes {nova.precision = "tf32"} {
  func.func @step(%arg0: tensor<1024x512xf32>, %arg1: tensor<1024x384xf32>, %arg2: tensor<1024x1xf32>) -> tensor<512x384xf32> {
    %0 = "nova.mul"(%arg1, %arg2) : (tensor<1024x384xf32>, tensor<1024x1xf32>) -> tensor<1024x384xf32>
    %1 = "nova.transpose"(%arg0) {perm = array<i64: 1, 0>} : (tensor<1024x512xf32>) -> tensor<512x1024xf32>
    %2 = "nova.transpose"(%0) {nova.store, perm = array<i64: 1, 0>} : (tensor<1024x384xf32>) -> tensor<384x1024xf32>
    %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : (tensor<384x1024xf32>) -> tensor<1024x384xf32>
    %4 = "nova.matmul"(%1, %3) : (tensor<512x1024xf32>, tensor<1024x384xf32>) -> tensor<512x384xf32>
    return %4 : tensor<512x384xf32>
  }
}

// ===== of two the smaller; what is repeated late is transposed late
module attributes {nova.precision = "tf32"} {
func.func @step(%e: tensor<8x128x512xf32>, %x: tensor<8x128x64xf32>) -> tensor<64x512xf32> {
  %0 = "nova.exp"(%e) : (tensor<8x128x512xf32>) -> tensor<8x128x512xf32>
  %1 = "nova.reshape"(%0) {shape = array<i64: 1024, 512>} : (tensor<8x128x512xf32>) -> tensor<1024x512xf32>
  %2 = "nova.neg"(%x) {nova.recompute} : (tensor<8x128x64xf32>) -> tensor<8x128x64xf32>
  %3 = "nova.reshape"(%2) {shape = array<i64: 1024, 64>} : (tensor<8x128x64xf32>) -> tensor<1024x64xf32>
  %4 = "nova.transpose"(%3) {perm = array<i64: 1, 0>} : (tensor<1024x64xf32>) -> tensor<64x1024xf32>
  %5 = "nova.matmul"(%4, %1) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  return %5 : tensor<64x512xf32>
}
}
// -----
module attributes {nova.precision = "tf32"} {
  func.func @step(%arg0: tensor<8x128x512xf32>, %arg1: tensor<8x128x64xf32>) -> tensor<64x512xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<8x128x512xf32>) -> tensor<8x128x512xf32>
    %1 = "nova.reshape"(%0) {shape = array<i64: 1024, 512>} : (tensor<8x128x512xf32>) -> tensor<1024x512xf32>
    %2 = "nova.neg"(%arg1) {nova.recompute} : (tensor<8x128x64xf32>) -> tensor<8x128x64xf32>
    %3 = "nova.reshape"(%2) {shape = array<i64: 1024, 64>} : (tensor<8x128x64xf32>) -> tensor<1024x64xf32>
    %4 = "nova.transpose"(%3) {perm = array<i64: 1, 0>} : (tensor<1024x64xf32>) -> tensor<64x1024xf32>
    %5 = "nova.transpose"(%4) {nova.recompute, nova.store, perm = array<i64: 1, 0>} : (tensor<64x1024xf32>) -> tensor<1024x64xf32>
    %6 = "nova.transpose"(%5) {perm = array<i64: 1, 0>} : (tensor<1024x64xf32>) -> tensor<64x1024xf32>
    %7 = "nova.matmul"(%6, %1) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
    return %7 : tensor<64x512xf32>
  }
}

// ===== forward and data gradient: a factor is k-major as it is
module attributes {nova.precision = "tf32"} {
func.func @step(%x: tensor<1024x384xf32>, %w: tensor<512x384xf32>) -> (tensor<1024x512xf32>, tensor<1024x384xf32>) {
  %0 = "nova.exp"(%x) : (tensor<1024x384xf32>) -> tensor<1024x384xf32>
  %1 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<512x384xf32>) -> tensor<384x512xf32>
  %2 = "nova.matmul"(%0, %1) : (tensor<1024x384xf32>, tensor<384x512xf32>) -> tensor<1024x512xf32>
  %3 = "nova.exp"(%2) : (tensor<1024x512xf32>) -> tensor<1024x512xf32>
  %4 = "nova.matmul"(%3, %w) : (tensor<1024x512xf32>, tensor<512x384xf32>) -> tensor<1024x384xf32>
  return %2, %4 : tensor<1024x512xf32>, tensor<1024x384xf32>
}
}
// ----- unchanged

// ===== tensors that others read, too, or that no elementwise operation makes
module attributes {nova.precision = "tf32"} {
func.func @step(%e: tensor<1024x512xf32>, %x: tensor<1024x384xf32>) -> (tensor<512x384xf32>, tensor<1024x384xf32>) {
  %0 = "nova.exp"(%x) : (tensor<1024x384xf32>) -> tensor<1024x384xf32>
  %1 = "nova.transpose"(%e) {perm = array<i64: 1, 0>} : (tensor<1024x512xf32>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%1, %0) : (tensor<512x1024xf32>, tensor<1024x384xf32>) -> tensor<512x384xf32>
  return %2, %0 : tensor<512x384xf32>, tensor<1024x384xf32>
}
}
// ----- unchanged

// ===== full precision has no layout of its own
func.func @step(%e: tensor<1024x512xf32>, %x: tensor<1024x384xf32>) -> tensor<512x384xf32> {
  %0 = "nova.exp"(%x) : (tensor<1024x384xf32>) -> tensor<1024x384xf32>
  %1 = "nova.transpose"(%e) {perm = array<i64: 1, 0>} : (tensor<1024x512xf32>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%1, %0) : (tensor<512x1024xf32>, tensor<1024x384xf32>) -> tensor<512x384xf32>
  return %2 : tensor<512x384xf32>
}
// ----- unchanged
