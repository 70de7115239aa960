// ===== a product with one and a transpose there and back vanish
func.func @step(%arg0: tensor<4x8xf32> {nova.role = "input"}) -> tensor<4x8xf32> {
  %0 = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %1 = "nova.mul"(%arg0, %0) : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %2 = "nova.transpose"(%1) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %4 = "nova.exp"(%3) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x8xf32> {nova.role = "input"}) -> tensor<4x8xf32> {
    %0 = "nova.exp"(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}

// ===== transposes in a row become one
func.func @step(%arg0: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
  %0 = "nova.transpose"(%arg0) {perm = array<i64: 1, 0, 2>} : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
  %1 = "nova.transpose"(%0) {perm = array<i64: 2, 1, 0>} : (tensor<3x2x4xf32>) -> tensor<4x2x3xf32>
  return %1 : tensor<4x2x3xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<2x3x4xf32>) -> tensor<4x2x3xf32> {
    %0 = "nova.transpose"(%arg0) {perm = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
    return %0 : tensor<4x2x3xf32>
  }
}

// ===== reshapes in a row become one, to the same shape none
func.func @step(%arg0: tensor<4x6xf32>) -> (tensor<3x8xf32>, tensor<4x6xf32>) {
  %0 = "nova.reshape"(%arg0) {shape = array<i64: 24>} : (tensor<4x6xf32>) -> tensor<24xf32>
  %1 = "nova.reshape"(%0) {shape = array<i64: 3, 8>} : (tensor<24xf32>) -> tensor<3x8xf32>
  %2 = "nova.reshape"(%0) {shape = array<i64: 4, 6>} : (tensor<24xf32>) -> tensor<4x6xf32>
  return %1, %2 : tensor<3x8xf32>, tensor<4x6xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x6xf32>) -> (tensor<3x8xf32>, tensor<4x6xf32>) {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 3, 8>} : (tensor<4x6xf32>) -> tensor<3x8xf32>
    return %0, %arg0 : tensor<3x8xf32>, tensor<4x6xf32>
  }
}

// ===== a slice of everything, a flip of nothing, a concatenation of one
func.func @step(%arg0: tensor<4x1xf32>) -> tensor<4x1xf32> {
  %0 = "nova.slice"(%arg0) {starts = array<i64: 0, 0>, sizes = array<i64: 4, 1>, steps = array<i64: 1, -1>} : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %1 = "nova.flip"(%0) {dims = array<i64: 1>} : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %2 = "nova.concat"(%1) {dim = 0} : (tensor<4x1xf32>) -> tensor<4x1xf32>
  return %2 : tensor<4x1xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x1xf32>) -> tensor<4x1xf32> {
    return %arg0 : tensor<4x1xf32>
  }
}

// ===== a reversing slice and a flip stay
func.func @step(%arg0: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "nova.slice"(%arg0) {sizes = array<i64: 4>, starts = array<i64: 3>, steps = array<i64: -1>} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.flip"(%arg0) {dims = array<i64: 0>} : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
// ----- unchanged

// ===== a transposition of a square stays
func.func @step(%arg0: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "nova.transpose"(%arg0) {perm = array<i64: 1, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}
// ----- unchanged

// ===== a sum over dimensions of extent 1 is a reshape; sums of integers change dtype and stay
func.func @step(%arg0: tensor<4x1xf32>, %arg1: tensor<4x1xi32>) -> (tensor<4xf32>, tensor<4xi64>) {
  %0 = "nova.sum"(%arg0) {dims = array<i64: 1>, keepdim = false} : (tensor<4x1xf32>) -> tensor<4xf32>
  %1 = "nova.sum"(%arg1) {dims = array<i64: 1>, keepdim = false} : (tensor<4x1xi32>) -> tensor<4xi64>
  return %0, %1 : tensor<4xf32>, tensor<4xi64>
}
// -----
module {
  func.func @step(%arg0: tensor<4x1xf32>, %arg1: tensor<4x1xi32>) -> (tensor<4xf32>, tensor<4xi64>) {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 4>} : (tensor<4x1xf32>) -> tensor<4xf32>
    %1 = "nova.sum"(%arg1) {dims = array<i64: 1>, keepdim = false} : (tensor<4x1xi32>) -> tensor<4xi64>
    return %0, %1 : tensor<4xf32>, tensor<4xi64>
  }
}

// ===== a sum over no rows is zero and stays
func.func @step(%arg0: tensor<0x4xf32>) -> tensor<1x4xf32> {
  %0 = "nova.sum"(%arg0) {dims = array<i64: 0>, keepdim = true} : (tensor<0x4xf32>) -> tensor<1x4xf32>
  return %0 : tensor<1x4xf32>
}
// ----- unchanged

// ===== casts: to the dtype that is there, through a wider one, of a constant
func.func @step(%arg0: tensor<4xbf16>) -> (tensor<4xbf16>, tensor<f32>) {
  %0 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4xbf16>) -> tensor<4xbf16>
  %1 = "nova.cast"(%0) {dtype = f32} : (tensor<4xbf16>) -> tensor<4xf32>
  %2 = "nova.cast"(%1) {dtype = bf16} : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = "nova.constant"() {value = 0.1 : f64} : () -> tensor<f64>
  %4 = "nova.cast"(%3) {dtype = f32} : (tensor<f64>) -> tensor<f32>
  return %2, %4 : tensor<4xbf16>, tensor<f32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xbf16>) -> (tensor<4xbf16>, tensor<f32>) {
    %0 = "nova.constant"() {value = 1.000000e-01 : f32} : () -> tensor<f32>
    return %arg0, %0 : tensor<4xbf16>, tensor<f32>
  }
}

// ===== casts that round stay: f32 through bf16, f16 through bf16, int64 through f32
func.func @step(%arg0: tensor<4xf32>, %arg1: tensor<4xf16>, %arg2: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xf16>, tensor<4xi64>) {
  %0 = "nova.cast"(%arg0) {dtype = bf16} : (tensor<4xf32>) -> tensor<4xbf16>
  %1 = "nova.cast"(%0) {dtype = f32} : (tensor<4xbf16>) -> tensor<4xf32>
  %2 = "nova.cast"(%arg1) {dtype = bf16} : (tensor<4xf16>) -> tensor<4xbf16>
  %3 = "nova.cast"(%2) {dtype = f16} : (tensor<4xbf16>) -> tensor<4xf16>
  %4 = "nova.cast"(%arg2) {dtype = f32} : (tensor<4xi64>) -> tensor<4xf32>
  %5 = "nova.cast"(%4) {dtype = i64} : (tensor<4xf32>) -> tensor<4xi64>
  return %1, %3, %5 : tensor<4xf32>, tensor<4xf16>, tensor<4xi64>
}
// ----- unchanged

// ===== adding zero: +0.0 turns -0.0 into +0.0 and stays, -0.0 and integer zeros go
func.func @step(%arg0: tensor<4xf32>, %arg1: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi64>) {
  %0 = "nova.constant"() {value = 0.0 : f32} : () -> tensor<f32>
  %1 = "nova.constant"() {value = -0.0 : f32} : () -> tensor<f32>
  %2 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
  %3 = "nova.add"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = "nova.add"(%1, %arg0) : (tensor<f32>, tensor<4xf32>) -> tensor<4xf32>
  %5 = "nova.add"(%arg1, %2) : (tensor<4xi64>, tensor<i64>) -> tensor<4xi64>
  return %3, %4, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xi64>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>, %arg1: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi64>) {
    %0 = "nova.constant"() {value = 0.000000e+00 : f32} : () -> tensor<f32>
    %1 = "nova.add"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %1, %arg0, %arg1 : tensor<4xf32>, tensor<4xf32>, tensor<4xi64>
  }
}

// ===== accumulation that starts from zeros: a sum is never -0.0
func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>) -> tensor<4x2xf32> {
  %0 = "nova.full"() {shape = array<i64: 4, 2>, value = 0, dtype = f32, device = "cpu"} : () -> tensor<4x2xf32>
  %1 = "nova.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  %2 = "nova.add"(%0, %1) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  return %2 : tensor<4x2xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>) -> tensor<4x2xf32> {
    %0 = "nova.matmul"(%arg0, %arg1) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}

// ===== adding a zero that broadcasts to a larger shape stays
func.func @step(%arg0: tensor<4xi64>) -> tensor<3x4xi64> {
  %0 = "nova.constant"() {value = 0 : i64} : () -> tensor<3x1xi64>
  %1 = "nova.add"(%arg0, %0) : (tensor<4xi64>, tensor<3x1xi64>) -> tensor<3x4xi64>
  return %1 : tensor<3x4xi64>
}
// ----- unchanged

// ===== division by one and by a power of two
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %1 = "nova.constant"() {value = 8.0 : f32} : () -> tensor<f32>
  %2 = "nova.div"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %3 = "nova.div"(%2, %1) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %3 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.constant"() {value = 1.250000e-01 : f32} : () -> tensor<f32>
    %1 = "nova.mul"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// ===== division by three is not a product
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.constant"() {value = 3.0 : f32} : () -> tensor<f32>
  %1 = "nova.div"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
// ----- unchanged

// ===== a square is a product, the first power nothing, the third power stays
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.constant"() {value = 2.0 : f32} : () -> tensor<f32>
  %1 = "nova.constant"() {value = 1.0 : f32} : () -> tensor<f32>
  %2 = "nova.constant"() {value = 3.0 : f32} : () -> tensor<f32>
  %3 = "nova.pow"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = "nova.pow"(%3, %1) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %5 = "nova.pow"(%4, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %5 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.constant"() {value = 3.000000e+00 : f32} : () -> tensor<f32>
    %1 = "nova.mul"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.pow"(%1, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
}

// ===== arithmetic on constants is done now, by the eager rule in the constant's dtype
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.constant"() {nova.weak, value = 0.9 : f64} : () -> tensor<f64>
  %1 = "nova.constant"() {nova.weak, value = 1 : i64} : () -> tensor<i64>
  %2 = "nova.sub"(%1, %0) : (tensor<i64>, tensor<f64>) -> tensor<f64>
  %3 = "nova.cast"(%2) {dtype = f32} : (tensor<f64>) -> tensor<f32>
  %4 = "nova.mul"(%arg0, %3) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %4 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.constant"() {value = 1.000000e-01 : f32} : () -> tensor<f32>
    %1 = "nova.mul"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// ===== choices that are known
func.func @step(%arg0: tensor<4xi1>, %arg1: tensor<4xf32>, %arg2: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "nova.constant"() {value = false} : () -> tensor<i1>
  %1 = "nova.where"(%0, %arg1, %arg2) : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "nova.where"(%arg0, %arg1, %arg1) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %1, %2 : tensor<4xf32>, tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xi1>, %arg1: tensor<4xf32>, %arg2: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    return %arg2, %arg1 : tensor<4xf32>, tensor<4xf32>
  }
}

// ===== moving a splat gives a splat
func.func @step(%arg0: tensor<4xf32>) -> tensor<2x4xf32> {
  %0 = "nova.constant"() {value = 3.0 : f32} : () -> tensor<f32>
  %1 = "nova.expand"(%0) {shape = array<i64: 4, 2>} : (tensor<f32>) -> tensor<4x2xf32>
  %2 = "nova.transpose"(%1) {perm = array<i64: 1, 0>} : (tensor<4x2xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<2x4xf32> {
    %0 = "nova.constant"() {value = 3.000000e+00 : f32} : () -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}

// ===== assigns and checks stay, unread operations go
func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<i32>) {
  %0 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "nova.exp"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "nova.log"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  "nova.check"(%arg1) {index = 0, message = "bad"} : (tensor<i32>) -> ()
  "nova.assign"(%arg0, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<i32>) {
    %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    "nova.check"(%arg1) {index = 0 : i64, message = "bad"} : (tensor<i32>) -> ()
    "nova.assign"(%arg0, %0) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return
  }
}

// ===== equal constants become one, and so does arithmetic on run-time numbers
func.func @step(%arg0: tensor<4xf32>, %arg1: tensor<f64> {nova.role = "scalar"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "nova.constant"() {nova.weak, value = 1.0 : f64} : () -> tensor<f64>
  %1 = "nova.sub"(%0, %arg1) : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %2 = "nova.cast"(%1) {dtype = f32} : (tensor<f64>) -> tensor<f32>
  %3 = "nova.mul"(%arg0, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %4 = "nova.constant"() {nova.weak, value = 1.0 : f64} : () -> tensor<f64>
  %5 = "nova.sub"(%4, %arg1) : (tensor<f64>, tensor<f64>) -> tensor<f64>
  %6 = "nova.cast"(%5) {dtype = f32} : (tensor<f64>) -> tensor<f32>
  %7 = "nova.add"(%arg0, %6) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return %3, %7 : tensor<4xf32>, tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>, %arg1: tensor<f64> {nova.role = "scalar"}) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = "nova.constant"() {nova.weak, value = 1.000000e+00 : f64} : () -> tensor<f64>
    %1 = "nova.sub"(%0, %arg1) : (tensor<f64>, tensor<f64>) -> tensor<f64>
    %2 = "nova.cast"(%1) {dtype = f32} : (tensor<f64>) -> tensor<f32>
    %3 = "nova.mul"(%arg0, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = "nova.add"(%arg0, %2) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    return %3, %4 : tensor<4xf32>, tensor<4xf32>
  }
}
