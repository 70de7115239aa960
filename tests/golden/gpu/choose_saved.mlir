// ===== a weight in bf16 is not rounded again
func.func @step(%x: tensor<64x512xf32>, %w: tensor<512x1024xf32>, %v: tensor<1024x512xf32>, %u: tensor<512x1024xf32>) -> (tensor<64x1024xf32>) {
  %0 = "nova.cast"(%w) {dtype = bf16} : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
  %1 = "nova.cast"(%0) {dtype = f32} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%x, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  %3 = "nova.matmul"(%2, %v) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %4 = "nova.matmul"(%x, %u) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  %5 = "nova.matmul"(%4, %v) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %6 = "nova.add"(%3, %5) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  %7 = "nova.matmul"(%6, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  return %7 : tensor<64x1024xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<64x512xf32>, %arg1: tensor<512x1024xf32>, %arg2: tensor<1024x512xf32>, %arg3: tensor<512x1024xf32>) -> tensor<64x1024xf32> {
    %0 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
    %1 = "nova.cast"(%0) {dtype = f32} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%arg0, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    %3 = "nova.matmul"(%2, %arg2) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
    %4 = "nova.matmul"(%arg0, %arg3) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    %5 = "nova.matmul"(%4, %arg2) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
    %6 = "nova.add"(%3, %5) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
    %7 = "nova.cast"(%0) {dtype = f32, nova.recompute} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %8 = "nova.matmul"(%6, %7) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    return %8 : tensor<64x1024xf32>
  }
}

// ===== unless memory is scarce
module attributes {nova.memory_limit = 1024 : i64} {
func.func @step(%x: tensor<64x512xf32>, %w: tensor<512x1024xf32>, %v: tensor<1024x512xf32>, %u: tensor<512x1024xf32>) -> (tensor<64x1024xf32>) {
  %0 = "nova.cast"(%w) {dtype = bf16} : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
  %1 = "nova.cast"(%0) {dtype = f32} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
  %2 = "nova.matmul"(%x, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  %3 = "nova.matmul"(%2, %v) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %4 = "nova.matmul"(%x, %u) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  %5 = "nova.matmul"(%4, %v) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %6 = "nova.add"(%3, %5) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
  %7 = "nova.matmul"(%6, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
  return %7 : tensor<64x1024xf32>
}
}
// -----
module attributes {nova.memory_limit = 1024 : i64} {
  func.func @step(%arg0: tensor<64x512xf32>, %arg1: tensor<512x1024xf32>, %arg2: tensor<1024x512xf32>, %arg3: tensor<512x1024xf32>) -> tensor<64x1024xf32> {
    %0 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
    %1 = "nova.cast"(%0) {dtype = f32} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %2 = "nova.matmul"(%arg0, %1) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    %3 = "nova.matmul"(%2, %arg2) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
    %4 = "nova.matmul"(%arg0, %arg3) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    %5 = "nova.matmul"(%4, %arg2) : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
    %6 = "nova.add"(%3, %5) : (tensor<64x512xf32>, tensor<64x512xf32>) -> tensor<64x512xf32>
    %7 = "nova.cast"(%arg1) {dtype = bf16, nova.recompute} : (tensor<512x1024xf32>) -> tensor<512x1024xbf16>
    %8 = "nova.cast"(%7) {dtype = f32, nova.recompute} : (tensor<512x1024xbf16>) -> tensor<512x1024xf32>
    %9 = "nova.matmul"(%6, %8) : (tensor<64x512xf32>, tensor<512x1024xf32>) -> tensor<64x1024xf32>
    return %9 : tensor<64x1024xf32>
  }
}
