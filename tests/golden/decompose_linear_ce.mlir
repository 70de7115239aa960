// ===== two chunks of 1024 rows, mean
func.func @step(%x: tensor<2048x64xf32>, %w: tensor<16384x64xf32>, %b: tensor<16384xf32>, %target: tensor<2048xi64>, %grad: tensor<f32>) -> (tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) {
  %r:4 = "nova.linear_ce"(%x, %w, %b, %target, %grad) {has_bias = true, ignore_index = -100, label_smoothing = 0.0, needs = [true, true, true], reduction = "mean"} : (tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>, tensor<2048xi64>, tensor<f32>) -> (tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>)
  return %r#0, %r#1, %r#2, %r#3 : tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<2048x64xf32>, %arg1: tensor<16384x64xf32>, %arg2: tensor<16384xf32>, %arg3: tensor<2048xi64>, %arg4: tensor<f32>) -> (tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) {
    %0 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %1 = "nova.ne"(%arg3, %0) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %2 = "nova.sum"(%1) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xi1>) -> tensor<i64>
    %3 = "nova.cast"(%2) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %4 = "nova.div"(%arg4, %3) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %5 = "nova.slice"(%arg0) {sizes = array<i64: 1024, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<2048x64xf32>) -> tensor<1024x64xf32>
    %6 = "nova.slice"(%arg3) {sizes = array<i64: 1024>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<2048xi64>) -> tensor<1024xi64>
    %7 = "nova.linear"(%5, %arg1, %arg2) : (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) -> tensor<1024x16384xf32>
    %8:2 = "nova.cross_entropy"(%7, %6) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024x16384xf32>, tensor<1024xi64>) -> (tensor<1024xf32>, tensor<1024xf32>)
    %9 = "nova.expand"(%4) {shape = array<i64: 1024>} : (tensor<f32>) -> tensor<1024xf32>
    %10 = "nova.cross_entropy_backward"(%9, %7, %6, %8#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024xf32>, tensor<1024x16384xf32>, tensor<1024xi64>, tensor<1024xf32>) -> tensor<1024x16384xf32>
    %11:3 = "nova.linear_backward"(%10, %5, %arg1) {needs = [true, true, true]} : (tensor<1024x16384xf32>, tensor<1024x64xf32>, tensor<16384x64xf32>) -> (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>)
    %12 = "nova.slice"(%arg0) {sizes = array<i64: 1024, 64>, starts = array<i64: 1024, 0>, steps = array<i64: 1, 1>} : (tensor<2048x64xf32>) -> tensor<1024x64xf32>
    %13 = "nova.slice"(%arg3) {sizes = array<i64: 1024>, starts = array<i64: 1024>, steps = array<i64: 1>} : (tensor<2048xi64>) -> tensor<1024xi64>
    %14 = "nova.linear"(%12, %arg1, %arg2) : (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) -> tensor<1024x16384xf32>
    %15:2 = "nova.cross_entropy"(%14, %13) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024x16384xf32>, tensor<1024xi64>) -> (tensor<1024xf32>, tensor<1024xf32>)
    %16 = "nova.expand"(%4) {shape = array<i64: 1024>} : (tensor<f32>) -> tensor<1024xf32>
    %17 = "nova.cross_entropy_backward"(%16, %14, %13, %15#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024xf32>, tensor<1024x16384xf32>, tensor<1024xi64>, tensor<1024xf32>) -> tensor<1024x16384xf32>
    %18:3 = "nova.linear_backward"(%17, %12, %arg1) {needs = [true, true, true]} : (tensor<1024x16384xf32>, tensor<1024x64xf32>, tensor<16384x64xf32>) -> (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>)
    %19 = "nova.add"(%11#1, %18#1) : (tensor<16384x64xf32>, tensor<16384x64xf32>) -> tensor<16384x64xf32>
    %20 = "nova.add"(%11#2, %18#2) : (tensor<16384xf32>, tensor<16384xf32>) -> tensor<16384xf32>
    %21 = "nova.concat"(%8#0, %15#0) {dim = 0 : i64} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<2048xf32>
    %22 = "nova.concat"(%11#0, %18#0) {dim = 0 : i64} : (tensor<1024x64xf32>, tensor<1024x64xf32>) -> tensor<2048x64xf32>
    %23 = "nova.sum"(%21) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xf32>) -> tensor<f32>
    %24 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %25 = "nova.ne"(%arg3, %24) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %26 = "nova.sum"(%25) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xi1>) -> tensor<i64>
    %27 = "nova.cast"(%26) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %28 = "nova.div"(%23, %27) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %28, %22, %19, %20 : tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>
  }
}

// ===== the last chunk is shorter where no divisor is near, sum, no bias
func.func @step(%x: tensor<1021x64xf32>, %w: tensor<40000x64xf32>, %b: tensor<40000xf32>, %target: tensor<1021xi64>, %grad: tensor<f32>) -> (tensor<f32>, tensor<40000x64xf32>) {
  %r:2 = "nova.linear_ce"(%x, %w, %target, %grad) {has_bias = false, ignore_index = -100, label_smoothing = 0.0, needs = [false, true, false], reduction = "sum"} : (tensor<1021x64xf32>, tensor<40000x64xf32>, tensor<1021xi64>, tensor<f32>) -> (tensor<f32>, tensor<40000x64xf32>)
  return %r#0, %r#1 : tensor<f32>, tensor<40000x64xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<1021x64xf32>, %arg1: tensor<40000x64xf32>, %arg2: tensor<40000xf32>, %arg3: tensor<1021xi64>, %arg4: tensor<f32>) -> (tensor<f32>, tensor<40000x64xf32>) {
    %0 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<1021x64xf32>) -> tensor<512x64xf32>
    %1 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<1021xi64>) -> tensor<512xi64>
    %2 = "nova.linear"(%0, %arg1) : (tensor<512x64xf32>, tensor<40000x64xf32>) -> tensor<512x40000xf32>
    %3:2 = "nova.cross_entropy"(%2, %1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<512x40000xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %4 = "nova.expand"(%arg4) {shape = array<i64: 512>} : (tensor<f32>) -> tensor<512xf32>
    %5 = "nova.cross_entropy_backward"(%4, %2, %1, %3#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<512xf32>, tensor<512x40000xf32>, tensor<512xi64>, tensor<512xf32>) -> tensor<512x40000xf32>
    %6 = "nova.linear_backward"(%5, %0, %arg1) {needs = [false, true, false]} : (tensor<512x40000xf32>, tensor<512x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %7 = "nova.slice"(%arg0) {sizes = array<i64: 509, 64>, starts = array<i64: 512, 0>, steps = array<i64: 1, 1>} : (tensor<1021x64xf32>) -> tensor<509x64xf32>
    %8 = "nova.slice"(%arg3) {sizes = array<i64: 509>, starts = array<i64: 512>, steps = array<i64: 1>} : (tensor<1021xi64>) -> tensor<509xi64>
    %9 = "nova.linear"(%7, %arg1) : (tensor<509x64xf32>, tensor<40000x64xf32>) -> tensor<509x40000xf32>
    %10:2 = "nova.cross_entropy"(%9, %8) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<509x40000xf32>, tensor<509xi64>) -> (tensor<509xf32>, tensor<509xf32>)
    %11 = "nova.expand"(%arg4) {shape = array<i64: 509>} : (tensor<f32>) -> tensor<509xf32>
    %12 = "nova.cross_entropy_backward"(%11, %9, %8, %10#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<509xf32>, tensor<509x40000xf32>, tensor<509xi64>, tensor<509xf32>) -> tensor<509x40000xf32>
    %13 = "nova.linear_backward"(%12, %7, %arg1) {needs = [false, true, false]} : (tensor<509x40000xf32>, tensor<509x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %14 = "nova.add"(%6, %13) : (tensor<40000x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %15 = "nova.concat"(%3#0, %10#0) {dim = 0 : i64} : (tensor<512xf32>, tensor<509xf32>) -> tensor<1021xf32>
    %16 = "nova.sum"(%15) {dims = array<i64: 0>, keepdim = false} : (tensor<1021xf32>) -> tensor<f32>
    return %16, %14 : tensor<f32>, tensor<40000x64xf32>
  }
}

// ===== per-row losses, one chunk
func.func @step(%x: tensor<256x64xf32>, %w: tensor<40000x64xf32>, %b: tensor<40000xf32>, %target: tensor<256xi64>, %grad: tensor<256xf32>) -> (tensor<256xf32>, tensor<256x64xf32>) {
  %r:2 = "nova.linear_ce"(%x, %w, %b, %target, %grad) {has_bias = true, ignore_index = -100, label_smoothing = 0.0, needs = [true, false, false], reduction = "none"} : (tensor<256x64xf32>, tensor<40000x64xf32>, tensor<40000xf32>, tensor<256xi64>, tensor<256xf32>) -> (tensor<256xf32>, tensor<256x64xf32>)
  return %r#0, %r#1 : tensor<256xf32>, tensor<256x64xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<256x64xf32>, %arg1: tensor<40000x64xf32>, %arg2: tensor<40000xf32>, %arg3: tensor<256xi64>, %arg4: tensor<256xf32>) -> (tensor<256xf32>, tensor<256x64xf32>) {
    %0 = "nova.linear"(%arg0, %arg1, %arg2) : (tensor<256x64xf32>, tensor<40000x64xf32>, tensor<40000xf32>) -> tensor<256x40000xf32>
    %1:2 = "nova.cross_entropy"(%0, %arg3) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<256x40000xf32>, tensor<256xi64>) -> (tensor<256xf32>, tensor<256xf32>)
    %2 = "nova.cross_entropy_backward"(%arg4, %0, %arg3, %1#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<256xf32>, tensor<256x40000xf32>, tensor<256xi64>, tensor<256xf32>) -> tensor<256x40000xf32>
    %3 = "nova.linear_backward"(%2, %arg0, %arg1) {needs = [true, false, false]} : (tensor<256x40000xf32>, tensor<256x64xf32>, tensor<40000x64xf32>) -> tensor<256x64xf32>
    return %1#0, %3 : tensor<256xf32>, tensor<256x64xf32>
  }
}

// ===== forward only
func.func @step(%x: tensor<1024x64xf32>, %w: tensor<50304x64xf32>, %b: tensor<50304xf32>, %target: tensor<1024xi64>, %grad: tensor<f32>) -> (tensor<f32>) {
  %r:1 = "nova.linear_ce"(%x, %w, %b, %target) {has_bias = true, ignore_index = -100, label_smoothing = 0.0, needs = [false, false, false], reduction = "mean"} : (tensor<1024x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>, tensor<1024xi64>) -> (tensor<f32>)
  return %r#0 : tensor<f32>
}
// -----
module {
  func.func @step(%arg0: tensor<1024x64xf32>, %arg1: tensor<50304x64xf32>, %arg2: tensor<50304xf32>, %arg3: tensor<1024xi64>, %arg4: tensor<f32>) -> tensor<f32> {
    %0 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<1024x64xf32>) -> tensor<512x64xf32>
    %1 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<1024xi64>) -> tensor<512xi64>
    %2 = "nova.linear"(%0, %arg1, %arg2) : (tensor<512x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<512x50304xf32>
    %3:2 = "nova.cross_entropy"(%2, %1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<512x50304xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %4 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 512, 0>, steps = array<i64: 1, 1>} : (tensor<1024x64xf32>) -> tensor<512x64xf32>
    %5 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 512>, steps = array<i64: 1>} : (tensor<1024xi64>) -> tensor<512xi64>
    %6 = "nova.linear"(%4, %arg1, %arg2) : (tensor<512x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<512x50304xf32>
    %7:2 = "nova.cross_entropy"(%6, %5) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<512x50304xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %8 = "nova.concat"(%3#0, %7#0) {dim = 0 : i64} : (tensor<512xf32>, tensor<512xf32>) -> tensor<1024xf32>
    %9 = "nova.sum"(%8) {dims = array<i64: 0>, keepdim = false} : (tensor<1024xf32>) -> tensor<f32>
    %10 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %11 = "nova.ne"(%arg3, %10) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %12 = "nova.sum"(%11) {dims = array<i64: 0>, keepdim = false} : (tensor<1024xi1>) -> tensor<i64>
    %13 = "nova.cast"(%12) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %14 = "nova.div"(%9, %13) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %14 : tensor<f32>
  }
}

// ===== nothing to do
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// ----- unchanged
