// ===== forward and backward of linear and cross-entropy become one operation
func.func @step(%x: tensor<8192x64xf32>, %w: tensor<50304x64xf32> {nova.role = "state"}, %b: tensor<50304xf32>, %target: tensor<8192xi64>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) {
  %logits = "nova.linear"(%x, %w, %b) : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<8192x50304xf32>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<8192x50304xf32>, tensor<8192xi64>) -> (tensor<f32>, tensor<8192xf32>)
  %grad = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<f32>, tensor<8192x50304xf32>, tensor<8192xi64>, tensor<8192xf32>) -> tensor<8192x50304xf32>
  %d:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<8192x50304xf32>, tensor<8192x64xf32>, tensor<50304x64xf32>) -> (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>)
  return %loss, %d#0, %d#1, %d#2 : tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<8192x64xf32>, %arg1: tensor<50304x64xf32> {nova.role = "state"}, %arg2: tensor<50304xf32>, %arg3: tensor<8192xi64>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) {
    %0 = "nova.constant"() {value = 1.000000e+00 : f32} : () -> tensor<f32>
    %1:4 = "nova.linear_ce"(%arg0, %arg1, %arg2, %arg3, %0) {has_bias = true, ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, needs = [true, true, true], reduction = "mean"} : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>, tensor<8192xi64>, tensor<f32>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>)
    return %1#0, %1#1, %1#2, %1#3 : tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>
  }
}

// ===== reshapes between them are looked through, the gradient's own operations move up
func.func @step(%x: tensor<8x1024x64xf32>, %w: tensor<50304x64xf32>, %target: tensor<8192xi64>, %scale: tensor<f64> {nova.role = "scalar"}) -> (tensor<f32>, tensor<8x1024x64xf32>, tensor<50304x64xf32>) {
  %logits = "nova.linear"(%x, %w) : (tensor<8x1024x64xf32>, tensor<50304x64xf32>) -> tensor<8x1024x50304xf32>
  %rows = "nova.reshape"(%logits) {shape = array<i64: 8192, 50304>} : (tensor<8x1024x50304xf32>) -> tensor<8192x50304xf32>
  %loss, %lse = "nova.cross_entropy"(%rows, %target) {ignore_index = -100, label_smoothing = 0.1, reduction = "sum"} : (tensor<8192x50304xf32>, tensor<8192xi64>) -> (tensor<f32>, tensor<8192xf32>)
  %grad = "nova.cast"(%scale) {dtype = f32} : (tensor<f64>) -> tensor<f32>
  %g = "nova.cross_entropy_backward"(%grad, %rows, %target, %lse) {ignore_index = -100, label_smoothing = 0.1, reduction = "sum"} : (tensor<f32>, tensor<8192x50304xf32>, tensor<8192xi64>, tensor<8192xf32>) -> tensor<8192x50304xf32>
  %g3 = "nova.reshape"(%g) {shape = array<i64: 8, 1024, 50304>} : (tensor<8192x50304xf32>) -> tensor<8x1024x50304xf32>
  %d:2 = "nova.linear_backward"(%g3, %x, %w) {needs = [true, true, false]} : (tensor<8x1024x50304xf32>, tensor<8x1024x64xf32>, tensor<50304x64xf32>) -> (tensor<8x1024x64xf32>, tensor<50304x64xf32>)
  return %loss, %d#0, %d#1 : tensor<f32>, tensor<8x1024x64xf32>, tensor<50304x64xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<8x1024x64xf32>, %arg1: tensor<50304x64xf32>, %arg2: tensor<8192xi64>, %arg3: tensor<f64> {nova.role = "scalar"}) -> (tensor<f32>, tensor<8x1024x64xf32>, tensor<50304x64xf32>) {
    %0 = "nova.cast"(%arg3) {dtype = f32} : (tensor<f64>) -> tensor<f32>
    %1 = "nova.reshape"(%arg0) {shape = array<i64: 8192, 64>} : (tensor<8x1024x64xf32>) -> tensor<8192x64xf32>
    %2:3 = "nova.linear_ce"(%1, %arg1, %arg2, %0) {has_bias = false, ignore_index = -100 : i64, label_smoothing = 1.000000e-01 : f64, needs = [true, true, false], reduction = "sum"} : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<8192xi64>, tensor<f32>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>)
    %3 = "nova.reshape"(%2#1) {shape = array<i64: 8, 1024, 64>} : (tensor<8192x64xf32>) -> tensor<8x1024x64xf32>
    return %2#0, %3, %2#2 : tensor<f32>, tensor<8x1024x64xf32>, tensor<50304x64xf32>
  }
}

// ===== the forward alone, without a bias
func.func @step(%x: tensor<8192x64xf32>, %w: tensor<50304x64xf32> {nova.role = "state"}, %b: tensor<50304xf32>, %target: tensor<8192xi64>) -> (tensor<f32>) {
  %logits = "nova.linear"(%x, %w) : (tensor<8192x64xf32>, tensor<50304x64xf32>) -> tensor<8192x50304xf32>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<8192x50304xf32>, tensor<8192xi64>) -> (tensor<f32>, tensor<8192xf32>)
  return %loss : tensor<f32>
}
// -----
module {
  func.func @step(%arg0: tensor<8192x64xf32>, %arg1: tensor<50304x64xf32> {nova.role = "state"}, %arg2: tensor<50304xf32>, %arg3: tensor<8192xi64>) -> tensor<f32> {
    %0 = "nova.linear_ce"(%arg0, %arg1, %arg3) {has_bias = false, ignore_index = -100 : i64, label_smoothing = 0.000000e+00 : f64, needs = [false, false, false], reduction = "mean"} : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<8192xi64>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// ===== small logits are left alone
func.func @step(%x: tensor<256x64xf32>, %w: tensor<512x64xf32> {nova.role = "state"}, %b: tensor<512xf32>, %target: tensor<256xi64>) -> (tensor<f32>, tensor<256x64xf32>, tensor<512x64xf32>, tensor<512xf32>) {
  %logits = "nova.linear"(%x, %w, %b) : (tensor<256x64xf32>, tensor<512x64xf32>, tensor<512xf32>) -> tensor<256x512xf32>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<256x512xf32>, tensor<256xi64>) -> (tensor<f32>, tensor<256xf32>)
  %grad = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<f32>, tensor<256x512xf32>, tensor<256xi64>, tensor<256xf32>) -> tensor<256x512xf32>
  %d:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<256x512xf32>, tensor<256x64xf32>, tensor<512x64xf32>) -> (tensor<256x64xf32>, tensor<512x64xf32>, tensor<512xf32>)
  return %loss, %d#0, %d#1, %d#2 : tensor<f32>, tensor<256x64xf32>, tensor<512x64xf32>, tensor<512xf32>
}
// ----- unchanged

// ===== narrow floats are left alone
func.func @step(%x: tensor<8192x64xbf16>, %w: tensor<50304x64xbf16> {nova.role = "state"}, %b: tensor<50304xbf16>, %target: tensor<8192xi64>) -> (tensor<bf16>, tensor<8192x64xbf16>, tensor<50304x64xbf16>, tensor<50304xbf16>) {
  %logits = "nova.linear"(%x, %w, %b) : (tensor<8192x64xbf16>, tensor<50304x64xbf16>, tensor<50304xbf16>) -> tensor<8192x50304xbf16>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<8192x50304xbf16>, tensor<8192xi64>) -> (tensor<bf16>, tensor<8192xf32>)
  %grad = "nova.constant"() {value = 1.0 : bf16} : () -> tensor<bf16>
  %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<bf16>, tensor<8192x50304xbf16>, tensor<8192xi64>, tensor<8192xf32>) -> tensor<8192x50304xbf16>
  %d:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<8192x50304xbf16>, tensor<8192x64xbf16>, tensor<50304x64xbf16>) -> (tensor<8192x64xbf16>, tensor<50304x64xbf16>, tensor<50304xbf16>)
  return %loss, %d#0, %d#1, %d#2 : tensor<bf16>, tensor<8192x64xbf16>, tensor<50304x64xbf16>, tensor<50304xbf16>
}
// ----- unchanged

// ===== logits that something else reads are left alone
func.func @step(%x: tensor<8192x64xf32>, %w: tensor<50304x64xf32> {nova.role = "state"}, %b: tensor<50304xf32>, %target: tensor<8192xi64>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) {
  %logits = "nova.linear"(%x, %w, %b) : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<8192x50304xf32>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<8192x50304xf32>, tensor<8192xi64>) -> (tensor<f32>, tensor<8192xf32>)
  %m = "nova.amax"(%logits) {dims = array<i64: 0, 1>, keepdim = false} : (tensor<8192x50304xf32>) -> tensor<f32>
  %grad = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<f32>, tensor<8192x50304xf32>, tensor<8192xi64>, tensor<8192xf32>) -> tensor<8192x50304xf32>
  %d:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<8192x50304xf32>, tensor<8192x64xf32>, tensor<50304x64xf32>) -> (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>)
  return %m, %d#0, %d#1, %d#2 : tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>
}
// ----- unchanged

// ===== a gradient that depends on the loss is left alone
func.func @step(%x: tensor<8192x64xf32>, %w: tensor<50304x64xf32> {nova.role = "state"}, %b: tensor<50304xf32>, %target: tensor<8192xi64>) -> (tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) {
  %logits = "nova.linear"(%x, %w, %b) : (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>) -> tensor<8192x50304xf32>
  %loss, %lse = "nova.cross_entropy"(%logits, %target) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<8192x50304xf32>, tensor<8192xi64>) -> (tensor<f32>, tensor<8192xf32>)
  %grad = "nova.mul"(%loss, %loss) : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %g = "nova.cross_entropy_backward"(%grad, %logits, %target, %lse) {ignore_index = -100, label_smoothing = 0.0, reduction = "mean"} : (tensor<f32>, tensor<8192x50304xf32>, tensor<8192xi64>, tensor<8192xf32>) -> tensor<8192x50304xf32>
  %d:3 = "nova.linear_backward"(%g, %x, %w) {needs = [true, true, true]} : (tensor<8192x50304xf32>, tensor<8192x64xf32>, tensor<50304x64xf32>) -> (tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>)
  return %loss, %d#0, %d#1, %d#2 : tensor<f32>, tensor<8192x64xf32>, tensor<50304x64xf32>, tensor<50304xf32>
}
// ----- unchanged
