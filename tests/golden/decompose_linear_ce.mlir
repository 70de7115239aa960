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
    %2 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %3 = "nova.lt"(%arg3, %2) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %4 = "nova.constant"() {value = 16384 : i64} : () -> tensor<i64>
    %5 = "nova.ge"(%arg3, %4) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %6 = "nova.logical_or"(%3, %5) : (tensor<2048xi1>, tensor<2048xi1>) -> tensor<2048xi1>
    %7 = "nova.logical_and"(%1, %6) : (tensor<2048xi1>, tensor<2048xi1>) -> tensor<2048xi1>
    %8 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %9 = "nova.lt"(%arg3, %8) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %10 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %11 = "nova.where"(%9, %10, %arg3) : (tensor<2048xi1>, tensor<i64>, tensor<2048xi64>) -> tensor<2048xi64>
    %12 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %13 = "nova.gt"(%11, %12) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %14 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %15 = "nova.where"(%13, %14, %11) : (tensor<2048xi1>, tensor<i64>, tensor<2048xi64>) -> tensor<2048xi64>
    %16 = "nova.cast"(%15) {dtype = i32} : (tensor<2048xi64>) -> tensor<2048xi32>
    %17 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %18 = "nova.where"(%7, %16, %17) : (tensor<2048xi1>, tensor<2048xi32>, tensor<i32>) -> tensor<2048xi32>
    %19 = "nova.amax"(%18) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xi32>) -> tensor<i32>
    %20 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %21 = "nova.eq"(%19, %20) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %22 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %23 = "nova.where"(%21, %22, %19) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%23) {index = 0 : i64, message = "cross_entropy: a target is out of range\0A  expected: 0 <= target < 16384, or ignore_index -100\0A  got: {flag}"} : (tensor<i32>) -> ()
    %24 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %25 = "nova.ne"(%arg3, %24) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %26 = "nova.sum"(%25) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xi1>) -> tensor<i64>
    %27 = "nova.cast"(%26) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %28 = "nova.div"(%arg4, %27) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %29 = "nova.slice"(%arg0) {sizes = array<i64: 1024, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<2048x64xf32>) -> tensor<1024x64xf32>
    %30 = "nova.slice"(%arg3) {sizes = array<i64: 1024>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<2048xi64>) -> tensor<1024xi64>
    %31 = "nova.linear"(%29, %arg1, %arg2) : (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) -> tensor<1024x16384xf32>
    %32:2 = "nova.cross_entropy"(%31, %30) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<1024x16384xf32>, tensor<1024xi64>) -> (tensor<1024xf32>, tensor<1024xf32>)
    %33 = "nova.expand"(%28) {shape = array<i64: 1024>} : (tensor<f32>) -> tensor<1024xf32>
    %34 = "nova.cross_entropy_backward"(%33, %31, %30, %32#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024xf32>, tensor<1024x16384xf32>, tensor<1024xi64>, tensor<1024xf32>) -> tensor<1024x16384xf32>
    %35:3 = "nova.linear_backward"(%34, %29, %arg1) {needs = [true, true, true]} : (tensor<1024x16384xf32>, tensor<1024x64xf32>, tensor<16384x64xf32>) -> (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>)
    %36 = "nova.slice"(%arg0) {sizes = array<i64: 1024, 64>, starts = array<i64: 1024, 0>, steps = array<i64: 1, 1>} : (tensor<2048x64xf32>) -> tensor<1024x64xf32>
    %37 = "nova.slice"(%arg3) {sizes = array<i64: 1024>, starts = array<i64: 1024>, steps = array<i64: 1>} : (tensor<2048xi64>) -> tensor<1024xi64>
    %38 = "nova.linear"(%36, %arg1, %arg2) : (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>) -> tensor<1024x16384xf32>
    %39:2 = "nova.cross_entropy"(%38, %37) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<1024x16384xf32>, tensor<1024xi64>) -> (tensor<1024xf32>, tensor<1024xf32>)
    %40 = "nova.expand"(%28) {shape = array<i64: 1024>} : (tensor<f32>) -> tensor<1024xf32>
    %41 = "nova.cross_entropy_backward"(%40, %38, %37, %39#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<1024xf32>, tensor<1024x16384xf32>, tensor<1024xi64>, tensor<1024xf32>) -> tensor<1024x16384xf32>
    %42:3 = "nova.linear_backward"(%41, %36, %arg1) {needs = [true, true, true]} : (tensor<1024x16384xf32>, tensor<1024x64xf32>, tensor<16384x64xf32>) -> (tensor<1024x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>)
    %43 = "nova.add"(%35#1, %42#1) : (tensor<16384x64xf32>, tensor<16384x64xf32>) -> tensor<16384x64xf32>
    %44 = "nova.add"(%35#2, %42#2) : (tensor<16384xf32>, tensor<16384xf32>) -> tensor<16384xf32>
    %45 = "nova.concat"(%32#0, %39#0) {dim = 0 : i64} : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<2048xf32>
    %46 = "nova.concat"(%35#0, %42#0) {dim = 0 : i64} : (tensor<1024x64xf32>, tensor<1024x64xf32>) -> tensor<2048x64xf32>
    %47 = "nova.sum"(%45) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xf32>) -> tensor<f32>
    %48 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %49 = "nova.ne"(%arg3, %48) : (tensor<2048xi64>, tensor<i64>) -> tensor<2048xi1>
    %50 = "nova.sum"(%49) {dims = array<i64: 0>, keepdim = false} : (tensor<2048xi1>) -> tensor<i64>
    %51 = "nova.cast"(%50) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %52 = "nova.div"(%47, %51) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %52, %46, %43, %44 : tensor<f32>, tensor<2048x64xf32>, tensor<16384x64xf32>, tensor<16384xf32>
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
    %0 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %1 = "nova.ne"(%arg3, %0) : (tensor<1021xi64>, tensor<i64>) -> tensor<1021xi1>
    %2 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %3 = "nova.lt"(%arg3, %2) : (tensor<1021xi64>, tensor<i64>) -> tensor<1021xi1>
    %4 = "nova.constant"() {value = 40000 : i64} : () -> tensor<i64>
    %5 = "nova.ge"(%arg3, %4) : (tensor<1021xi64>, tensor<i64>) -> tensor<1021xi1>
    %6 = "nova.logical_or"(%3, %5) : (tensor<1021xi1>, tensor<1021xi1>) -> tensor<1021xi1>
    %7 = "nova.logical_and"(%1, %6) : (tensor<1021xi1>, tensor<1021xi1>) -> tensor<1021xi1>
    %8 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %9 = "nova.lt"(%arg3, %8) : (tensor<1021xi64>, tensor<i64>) -> tensor<1021xi1>
    %10 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %11 = "nova.where"(%9, %10, %arg3) : (tensor<1021xi1>, tensor<i64>, tensor<1021xi64>) -> tensor<1021xi64>
    %12 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %13 = "nova.gt"(%11, %12) : (tensor<1021xi64>, tensor<i64>) -> tensor<1021xi1>
    %14 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %15 = "nova.where"(%13, %14, %11) : (tensor<1021xi1>, tensor<i64>, tensor<1021xi64>) -> tensor<1021xi64>
    %16 = "nova.cast"(%15) {dtype = i32} : (tensor<1021xi64>) -> tensor<1021xi32>
    %17 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %18 = "nova.where"(%7, %16, %17) : (tensor<1021xi1>, tensor<1021xi32>, tensor<i32>) -> tensor<1021xi32>
    %19 = "nova.amax"(%18) {dims = array<i64: 0>, keepdim = false} : (tensor<1021xi32>) -> tensor<i32>
    %20 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %21 = "nova.eq"(%19, %20) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %22 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %23 = "nova.where"(%21, %22, %19) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%23) {index = 0 : i64, message = "cross_entropy: a target is out of range\0A  expected: 0 <= target < 40000, or ignore_index -100\0A  got: {flag}"} : (tensor<i32>) -> ()
    %24 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<1021x64xf32>) -> tensor<512x64xf32>
    %25 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<1021xi64>) -> tensor<512xi64>
    %26 = "nova.linear"(%24, %arg1) : (tensor<512x64xf32>, tensor<40000x64xf32>) -> tensor<512x40000xf32>
    %27:2 = "nova.cross_entropy"(%26, %25) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<512x40000xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %28 = "nova.expand"(%arg4) {shape = array<i64: 512>} : (tensor<f32>) -> tensor<512xf32>
    %29 = "nova.cross_entropy_backward"(%28, %26, %25, %27#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<512xf32>, tensor<512x40000xf32>, tensor<512xi64>, tensor<512xf32>) -> tensor<512x40000xf32>
    %30 = "nova.linear_backward"(%29, %24, %arg1) {needs = [false, true, false]} : (tensor<512x40000xf32>, tensor<512x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %31 = "nova.slice"(%arg0) {sizes = array<i64: 509, 64>, starts = array<i64: 512, 0>, steps = array<i64: 1, 1>} : (tensor<1021x64xf32>) -> tensor<509x64xf32>
    %32 = "nova.slice"(%arg3) {sizes = array<i64: 509>, starts = array<i64: 512>, steps = array<i64: 1>} : (tensor<1021xi64>) -> tensor<509xi64>
    %33 = "nova.linear"(%31, %arg1) : (tensor<509x64xf32>, tensor<40000x64xf32>) -> tensor<509x40000xf32>
    %34:2 = "nova.cross_entropy"(%33, %32) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<509x40000xf32>, tensor<509xi64>) -> (tensor<509xf32>, tensor<509xf32>)
    %35 = "nova.expand"(%arg4) {shape = array<i64: 509>} : (tensor<f32>) -> tensor<509xf32>
    %36 = "nova.cross_entropy_backward"(%35, %33, %32, %34#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<509xf32>, tensor<509x40000xf32>, tensor<509xi64>, tensor<509xf32>) -> tensor<509x40000xf32>
    %37 = "nova.linear_backward"(%36, %31, %arg1) {needs = [false, true, false]} : (tensor<509x40000xf32>, tensor<509x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %38 = "nova.add"(%30, %37) : (tensor<40000x64xf32>, tensor<40000x64xf32>) -> tensor<40000x64xf32>
    %39 = "nova.concat"(%27#0, %34#0) {dim = 0 : i64} : (tensor<512xf32>, tensor<509xf32>) -> tensor<1021xf32>
    %40 = "nova.sum"(%39) {dims = array<i64: 0>, keepdim = false} : (tensor<1021xf32>) -> tensor<f32>
    return %40, %38 : tensor<f32>, tensor<40000x64xf32>
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
    %0 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %1 = "nova.ne"(%arg3, %0) : (tensor<256xi64>, tensor<i64>) -> tensor<256xi1>
    %2 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %3 = "nova.lt"(%arg3, %2) : (tensor<256xi64>, tensor<i64>) -> tensor<256xi1>
    %4 = "nova.constant"() {value = 40000 : i64} : () -> tensor<i64>
    %5 = "nova.ge"(%arg3, %4) : (tensor<256xi64>, tensor<i64>) -> tensor<256xi1>
    %6 = "nova.logical_or"(%3, %5) : (tensor<256xi1>, tensor<256xi1>) -> tensor<256xi1>
    %7 = "nova.logical_and"(%1, %6) : (tensor<256xi1>, tensor<256xi1>) -> tensor<256xi1>
    %8 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %9 = "nova.lt"(%arg3, %8) : (tensor<256xi64>, tensor<i64>) -> tensor<256xi1>
    %10 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %11 = "nova.where"(%9, %10, %arg3) : (tensor<256xi1>, tensor<i64>, tensor<256xi64>) -> tensor<256xi64>
    %12 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %13 = "nova.gt"(%11, %12) : (tensor<256xi64>, tensor<i64>) -> tensor<256xi1>
    %14 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %15 = "nova.where"(%13, %14, %11) : (tensor<256xi1>, tensor<i64>, tensor<256xi64>) -> tensor<256xi64>
    %16 = "nova.cast"(%15) {dtype = i32} : (tensor<256xi64>) -> tensor<256xi32>
    %17 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %18 = "nova.where"(%7, %16, %17) : (tensor<256xi1>, tensor<256xi32>, tensor<i32>) -> tensor<256xi32>
    %19 = "nova.amax"(%18) {dims = array<i64: 0>, keepdim = false} : (tensor<256xi32>) -> tensor<i32>
    %20 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %21 = "nova.eq"(%19, %20) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %22 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %23 = "nova.where"(%21, %22, %19) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%23) {index = 0 : i64, message = "cross_entropy: a target is out of range\0A  expected: 0 <= target < 40000, or ignore_index -100\0A  got: {flag}"} : (tensor<i32>) -> ()
    %24 = "nova.linear"(%arg0, %arg1, %arg2) : (tensor<256x64xf32>, tensor<40000x64xf32>, tensor<40000xf32>) -> tensor<256x40000xf32>
    %25:2 = "nova.cross_entropy"(%24, %arg3) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<256x40000xf32>, tensor<256xi64>) -> (tensor<256xf32>, tensor<256xf32>)
    %26 = "nova.cross_entropy_backward"(%arg4, %24, %arg3, %25#1) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, reduction = "none"} : (tensor<256xf32>, tensor<256x40000xf32>, tensor<256xi64>, tensor<256xf32>) -> tensor<256x40000xf32>
    %27 = "nova.linear_backward"(%26, %arg0, %arg1) {needs = [true, false, false]} : (tensor<256x40000xf32>, tensor<256x64xf32>, tensor<40000x64xf32>) -> tensor<256x64xf32>
    return %25#0, %27 : tensor<256xf32>, tensor<256x64xf32>
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
    %0 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %1 = "nova.ne"(%arg3, %0) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %2 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %3 = "nova.lt"(%arg3, %2) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %4 = "nova.constant"() {value = 50304 : i64} : () -> tensor<i64>
    %5 = "nova.ge"(%arg3, %4) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %6 = "nova.logical_or"(%3, %5) : (tensor<1024xi1>, tensor<1024xi1>) -> tensor<1024xi1>
    %7 = "nova.logical_and"(%1, %6) : (tensor<1024xi1>, tensor<1024xi1>) -> tensor<1024xi1>
    %8 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %9 = "nova.lt"(%arg3, %8) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %10 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %11 = "nova.where"(%9, %10, %arg3) : (tensor<1024xi1>, tensor<i64>, tensor<1024xi64>) -> tensor<1024xi64>
    %12 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %13 = "nova.gt"(%11, %12) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %14 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %15 = "nova.where"(%13, %14, %11) : (tensor<1024xi1>, tensor<i64>, tensor<1024xi64>) -> tensor<1024xi64>
    %16 = "nova.cast"(%15) {dtype = i32} : (tensor<1024xi64>) -> tensor<1024xi32>
    %17 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %18 = "nova.where"(%7, %16, %17) : (tensor<1024xi1>, tensor<1024xi32>, tensor<i32>) -> tensor<1024xi32>
    %19 = "nova.amax"(%18) {dims = array<i64: 0>, keepdim = false} : (tensor<1024xi32>) -> tensor<i32>
    %20 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %21 = "nova.eq"(%19, %20) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %22 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %23 = "nova.where"(%21, %22, %19) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%23) {index = 0 : i64, message = "cross_entropy: a target is out of range\0A  expected: 0 <= target < 50304, or ignore_index -100\0A  got: {flag}"} : (tensor<i32>) -> ()
    %24 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 0, 0>, steps = array<i64: 1, 1>} : (tensor<1024x64xf32>) -> tensor<512x64xf32>
    %25 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 0>, steps = array<i64: 1>} : (tensor<1024xi64>) -> tensor<512xi64>
    %26 = "nova.linear"(%24, %arg1, %arg2) : (tensor<512x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<512x50304xf32>
    %27:2 = "nova.cross_entropy"(%26, %25) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<512x50304xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %28 = "nova.slice"(%arg0) {sizes = array<i64: 512, 64>, starts = array<i64: 512, 0>, steps = array<i64: 1, 1>} : (tensor<1024x64xf32>) -> tensor<512x64xf32>
    %29 = "nova.slice"(%arg3) {sizes = array<i64: 512>, starts = array<i64: 512>, steps = array<i64: 1>} : (tensor<1024xi64>) -> tensor<512xi64>
    %30 = "nova.linear"(%28, %arg1, %arg2) : (tensor<512x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<512x50304xf32>
    %31:2 = "nova.cross_entropy"(%30, %29) {ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, nova.checked, reduction = "none"} : (tensor<512x50304xf32>, tensor<512xi64>) -> (tensor<512xf32>, tensor<512xf32>)
    %32 = "nova.concat"(%27#0, %31#0) {dim = 0 : i64} : (tensor<512xf32>, tensor<512xf32>) -> tensor<1024xf32>
    %33 = "nova.sum"(%32) {dims = array<i64: 0>, keepdim = false} : (tensor<1024xf32>) -> tensor<f32>
    %34 = "nova.constant"() {value = -100 : i64} : () -> tensor<i64>
    %35 = "nova.ne"(%arg3, %34) : (tensor<1024xi64>, tensor<i64>) -> tensor<1024xi1>
    %36 = "nova.sum"(%35) {dims = array<i64: 0>, keepdim = false} : (tensor<1024xi1>) -> tensor<i64>
    %37 = "nova.cast"(%36) {dtype = f32} : (tensor<i64>) -> tensor<f32>
    %38 = "nova.div"(%33, %37) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %38 : tensor<f32>
  }
}

// ===== nothing to do
func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// ----- unchanged
