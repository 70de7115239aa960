// ===== rows by an i32 index, checked and counted from the front
func.func @step(%x: tensor<9x4xf32> {nova.role = "input"}, %i: tensor<3xi32> {nova.role = "input"}) -> tensor<3x4xf32> {
  %0 = "nova.take"(%x, %i) {dim = 0 : i64} : (tensor<9x4xf32>, tensor<3xi32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<9x4xf32> {nova.role = "input"}, %arg1: tensor<3xi32> {nova.role = "input"}) -> tensor<3x4xf32> {
    %0 = "nova.cast"(%arg1) {dtype = i64} : (tensor<3xi32>) -> tensor<3xi64>
    %1 = "nova.constant"() {value = -9 : i64} : () -> tensor<i64>
    %2 = "nova.lt"(%0, %1) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
    %3 = "nova.constant"() {value = 9 : i64} : () -> tensor<i64>
    %4 = "nova.ge"(%0, %3) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
    %5 = "nova.logical_or"(%2, %4) : (tensor<3xi1>, tensor<3xi1>) -> tensor<3xi1>
    %6 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %7 = "nova.add"(%0, %6) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi64>
    %8 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %9 = "nova.lt"(%7, %8) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
    %10 = "nova.constant"() {value = -2147483647 : i64} : () -> tensor<i64>
    %11 = "nova.where"(%9, %10, %7) : (tensor<3xi1>, tensor<i64>, tensor<3xi64>) -> tensor<3xi64>
    %12 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %13 = "nova.gt"(%11, %12) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
    %14 = "nova.constant"() {value = 2147483647 : i64} : () -> tensor<i64>
    %15 = "nova.where"(%13, %14, %11) : (tensor<3xi1>, tensor<i64>, tensor<3xi64>) -> tensor<3xi64>
    %16 = "nova.cast"(%15) {dtype = i32} : (tensor<3xi64>) -> tensor<3xi32>
    %17 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %18 = "nova.where"(%5, %16, %17) : (tensor<3xi1>, tensor<3xi32>, tensor<i32>) -> tensor<3xi32>
    %19 = "nova.amax"(%18) {dims = array<i64: 0>, keepdim = false} : (tensor<3xi32>) -> tensor<i32>
    %20 = "nova.constant"() {value = -2147483648 : i32} : () -> tensor<i32>
    %21 = "nova.eq"(%19, %20) : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %22 = "nova.constant"() {value = 0 : i32} : () -> tensor<i32>
    %23 = "nova.where"(%21, %22, %19) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%23) {index = 0 : i64, message = "index: an index is out of range\0A  expected: -9 <= index < 9\0A  got: {flag}"} : (tensor<i32>) -> ()
    %24 = "nova.constant"() {value = 0 : i64} : () -> tensor<i64>
    %25 = "nova.lt"(%0, %24) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
    %26 = "nova.constant"() {value = 9 : i64} : () -> tensor<i64>
    %27 = "nova.add"(%0, %26) : (tensor<3xi64>, tensor<i64>) -> tensor<3xi64>
    %28 = "nova.where"(%25, %27, %0) : (tensor<3xi1>, tensor<3xi64>, tensor<3xi64>) -> tensor<3xi64>
    %29 = "nova.take"(%arg0, %28) {dim = 0 : i64} : (tensor<9x4xf32>, tensor<3xi64>) -> tensor<3x4xf32>
    return %29 : tensor<3x4xf32>
  }
}

// ===== a slice is no index
func.func @step(%x: tensor<9x4xf32> {nova.role = "input"}) -> tensor<2x4xf32> {
  %0 = "nova.slice"(%x) {sizes = array<i64: 2, 4>, starts = array<i64: 1, 0>, steps = array<i64: 1, 1>} : (tensor<9x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
// ----- unchanged
