// ===== gradients become parts of one vector, their averages are read from it
func.func @step(%x: tensor<10xf32>, %y: tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>) {
  %g0 = "nova.exp"(%x) : (tensor<10xf32>) -> tensor<10xf32>
  %g1 = "nova.exp"(%y) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %r:2 = "nova.reduce_bucket"(%g0, %g1) {blocks = 4 : i64, bucket = 3 : i64, offsets = array<i64: 0, 64>, reducer = 0 : i64, size = 128 : i64} : (tensor<10xf32>, tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>)
  %0 = "nova.neg"(%r#0) : (tensor<10xf32>) -> tensor<10xf32>
  %1 = "nova.neg"(%r#1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1 : tensor<10xf32>, tensor<8x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<10xf32>, %arg1: tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>) {
    %0 = "nova.exp"(%arg0) : (tensor<10xf32>) -> tensor<10xf32>
    %1 = "nova.exp"(%arg1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = "nova.reshape"(%1) {shape = array<i64: 64>} : (tensor<8x8xf32>) -> tensor<64xf32>
    %3 = "nova.bucket_ready"(%0, %2) {blocks = 4 : i64, bucket = 3 : i64, offsets = array<i64: 0, 64>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<10xf32>, tensor<64xf32>) -> tensor<128xf32>
    %4 = "nova.bucket_wait"(%3) : (tensor<128xf32>) -> tensor<128xf32>
    %5 = "nova.slice"(%4) {sizes = array<i64: 10>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<128xf32>) -> tensor<10xf32>
    %6 = "nova.slice"(%4) {sizes = array<i64: 64>, starts = array<i64: 64>, steps = array<i64: 1>} : (tensor<128xf32>) -> tensor<64xf32>
    %7 = "nova.reshape"(%6) {shape = array<i64: 8, 8>} : (tensor<64xf32>) -> tensor<8x8xf32>
    %8 = "nova.neg"(%5) : (tensor<10xf32>) -> tensor<10xf32>
    %9 = "nova.neg"(%7) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %8, %9 : tensor<10xf32>, tensor<8x8xf32>
  }
}

// ===== copied: what is no kernel's own, and what somebody else reads before it is averaged
func.func @step(%x: tensor<10xf32>, %y: tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>) {
  %g0 = "nova.exp"(%x) : (tensor<10xf32>) -> tensor<10xf32>
  %s = "nova.neg"(%g0) : (tensor<10xf32>) -> tensor<10xf32>
  %r:3 = "nova.reduce_bucket"(%g0, %y, %s) {blocks = 4 : i64, bucket = 0 : i64, offsets = array<i64: 0, 64, 128>, reducer = 0 : i64, size = 192 : i64} : (tensor<10xf32>, tensor<8x8xf32>, tensor<10xf32>) -> (tensor<10xf32>, tensor<8x8xf32>, tensor<10xf32>)
  %0 = "nova.add"(%r#0, %r#2) : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
  return %0, %r#1 : tensor<10xf32>, tensor<8x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<10xf32>, %arg1: tensor<8x8xf32>) -> (tensor<10xf32>, tensor<8x8xf32>) {
    %0 = "nova.exp"(%arg0) : (tensor<10xf32>) -> tensor<10xf32>
    %1 = "nova.neg"(%0) : (tensor<10xf32>) -> tensor<10xf32>
    %2 = "nova.copy"(%0) : (tensor<10xf32>) -> tensor<10xf32>
    %3 = "nova.copy"(%arg1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %4 = "nova.reshape"(%3) {shape = array<i64: 64>} : (tensor<8x8xf32>) -> tensor<64xf32>
    %5 = "nova.bucket_ready"(%2, %4, %1) {blocks = 4 : i64, bucket = 0 : i64, offsets = array<i64: 0, 64, 128>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<10xf32>, tensor<64xf32>, tensor<10xf32>) -> tensor<192xf32>
    %6 = "nova.bucket_wait"(%5) : (tensor<192xf32>) -> tensor<192xf32>
    %7 = "nova.slice"(%6) {sizes = array<i64: 10>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<192xf32>) -> tensor<10xf32>
    %8 = "nova.slice"(%6) {sizes = array<i64: 64>, starts = array<i64: 64>, steps = array<i64: 1>} : (tensor<192xf32>) -> tensor<64xf32>
    %9 = "nova.reshape"(%8) {shape = array<i64: 8, 8>} : (tensor<64xf32>) -> tensor<8x8xf32>
    %10 = "nova.slice"(%6) {sizes = array<i64: 10>, starts = array<i64: 128>, steps = array<i64: 1>} : (tensor<192xf32>) -> tensor<10xf32>
    %11 = "nova.add"(%7, %10) : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
    return %11, %9 : tensor<10xf32>, tensor<8x8xf32>
  }
}

// ===== collectives of a forward: this rank's part lies behind all of it
func.func @step(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = "nova.exp"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = "nova.all_gather"(%0) {count = 6 : i64, ranks = 2 : i64} : (tensor<2x3xf32>) -> tensor<4x3xf32>
  %2 = "nova.neg"(%1) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %3 = "nova.reduce_scatter"(%2) {count = 12 : i64, op = "sum", ranks = 2 : i64} : (tensor<4x3xf32>) -> tensor<2x3xf32>
  return %3 : tensor<2x3xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = "nova.reshape"(%0) {shape = array<i64: 6>} : (tensor<2x3xf32>) -> tensor<6xf32>
    %2 = "nova.bucket_ready"(%1) {count = 6 : i64, offsets = array<i64: 256>, primitive = "all_gather", ranks = 2 : i64} : (tensor<6xf32>) -> tensor<262xf32>
    %3 = "nova.bucket_wait"(%2) : (tensor<262xf32>) -> tensor<262xf32>
    %4 = "nova.slice"(%3) {sizes = array<i64: 12>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<262xf32>) -> tensor<12xf32>
    %5 = "nova.reshape"(%4) {shape = array<i64: 4, 3>} : (tensor<12xf32>) -> tensor<4x3xf32>
    %6 = "nova.neg"(%5) : (tensor<4x3xf32>) -> tensor<4x3xf32>
    %7 = "nova.reshape"(%6) {shape = array<i64: 12>} : (tensor<4x3xf32>) -> tensor<12xf32>
    %8 = "nova.bucket_ready"(%7) {count = 12 : i64, offsets = array<i64: 0>, op = "sum", primitive = "reduce_scatter", ranks = 2 : i64} : (tensor<12xf32>) -> tensor<262xf32>
    %9 = "nova.bucket_wait"(%8) : (tensor<262xf32>) -> tensor<262xf32>
    %10 = "nova.slice"(%9) {sizes = array<i64: 6>, starts = array<i64: 256>, steps = array<i64: 1>} : (tensor<262xf32>) -> tensor<6xf32>
    %11 = "nova.reshape"(%10) {shape = array<i64: 2, 3>} : (tensor<6xf32>) -> tensor<2x3xf32>
    return %11 : tensor<2x3xf32>
  }
}

// ===== a step of one process
func.func @step(%x: tensor<10xf32>) -> tensor<10xf32> {
  %0 = "nova.exp"(%x) : (tensor<10xf32>) -> tensor<10xf32>
  return %0 : tensor<10xf32>
}
// ----- unchanged
