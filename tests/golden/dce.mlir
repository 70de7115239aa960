// ===== what nobody reads goes, and what only that read
func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "nova.exp"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.log"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// ===== updates and checks keep what they need; unread arguments stay
func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<4xf32>, %arg2: tensor<i32>) {
  %0 = "nova.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "nova.neg"(%arg2) : (tensor<i32>) -> tensor<i32>
  "nova.check"(%1) {index = 0, message = "bad"} : (tensor<i32>) -> ()
  "nova.assign"(%arg0, %0) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return
}
// ----- unchanged

// ===== one used result keeps an operation with several
func.func @step(%arg0: tensor<4x8xf32>) -> tensor<4x1xf32> {
  %0:3 = "nova.layer_norm"(%arg0) {eps = 1.000000e-05 : f64, num_dims = 1 : i64} : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>)
  return %0#1 : tensor<4x1xf32>
}
// ----- unchanged
