// ===== bias, reshape and an elementwise tail become the epilogue of a product
func.func @step(%x: tensor<2x3x8xf32> {nova.role = "input"}, %w: tensor<4x8xf32> {nova.role = "state"}, %b: tensor<4xf32> {nova.role = "state"}) -> tensor<2x3x4xf32> {
  %0 = "nova.transpose"(%w) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %1 = "nova.reshape"(%x) {shape = array<i64: 6, 8>} : (tensor<2x3x8xf32>) -> tensor<6x8xf32>
  %2 = "nova.matmul"(%1, %0) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  %3 = "nova.add"(%2, %b) : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  %4 = "nova.reshape"(%3) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
  %5 = "nova.tanh"(%4) : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  return %5 : tensor<2x3x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<2x3x8xf32> {nova.role = "input"}, %arg1: tensor<4x8xf32> {nova.role = "state"}, %arg2: tensor<4xf32> {nova.role = "state"}) -> tensor<2x3x4xf32> {
    %0 = "nova.kernel"(%arg1, %arg0, %arg2) ({
    ^bb0(%arg3: tensor<4x8xf32>, %arg4: tensor<2x3x8xf32>, %arg5: tensor<4xf32>):
      %1 = "nova.transpose"(%arg3) {perm = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
      %2 = "nova.reshape"(%arg4) {shape = array<i64: 6, 8>} : (tensor<2x3x8xf32>) -> tensor<6x8xf32>
      %3 = "nova.matmul"(%2, %1) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
      %4 = "nova.add"(%3, %arg5) : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
      %5 = "nova.reshape"(%4) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
      %6 = "nova.tanh"(%5) : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
      "nova.yield"(%6) : (tensor<2x3x4xf32>) -> ()
    }) {anchor = "contract"} : (tensor<4x8xf32>, tensor<2x3x8xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
    return %0 : tensor<2x3x4xf32>
  }
}

// ===== a value read twice is the waist; what follows it is recomputed by its readers
func.func @step(%x: tensor<6x8xf32> {nova.role = "input"}, %w: tensor<8x4xf32> {nova.role = "state"}, %v: tensor<4x5xf32> {nova.role = "state"}) -> (tensor<6x5xf32>, tensor<4x4xf32>) {
  %0 = "nova.matmul"(%x, %w) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
  %1 = "nova.exp"(%0) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %2 = "nova.matmul"(%1, %v) : (tensor<6x4xf32>, tensor<4x5xf32>) -> tensor<6x5xf32>
  %3 = "nova.transpose"(%0) {perm = array<i64: 1, 0>} : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %4 = "nova.matmul"(%3, %1) : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  return %2, %4 : tensor<6x5xf32>, tensor<4x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}, %arg1: tensor<8x4xf32> {nova.role = "state"}, %arg2: tensor<4x5xf32> {nova.role = "state"}) -> (tensor<6x5xf32>, tensor<4x4xf32>) {
    %0 = "nova.kernel"(%arg0, %arg1) ({
    ^bb0(%arg3: tensor<6x8xf32>, %arg4: tensor<8x4xf32>):
      %3 = "nova.matmul"(%arg3, %arg4) : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
      "nova.yield"(%3) : (tensor<6x4xf32>) -> ()
    }) {anchor = "contract"} : (tensor<6x8xf32>, tensor<8x4xf32>) -> tensor<6x4xf32>
    %1 = "nova.kernel"(%0, %arg2) ({
    ^bb0(%arg3: tensor<6x4xf32>, %arg4: tensor<4x5xf32>):
      %3 = "nova.exp"(%arg3) : (tensor<6x4xf32>) -> tensor<6x4xf32>
      %4 = "nova.matmul"(%3, %arg4) : (tensor<6x4xf32>, tensor<4x5xf32>) -> tensor<6x5xf32>
      "nova.yield"(%4) : (tensor<6x5xf32>) -> ()
    }) {anchor = "contract"} : (tensor<6x4xf32>, tensor<4x5xf32>) -> tensor<6x5xf32>
    %2 = "nova.kernel"(%0) ({
    ^bb0(%arg3: tensor<6x4xf32>):
      %3 = "nova.exp"(%arg3) : (tensor<6x4xf32>) -> tensor<6x4xf32>
      %4 = "nova.transpose"(%arg3) {perm = array<i64: 1, 0>} : (tensor<6x4xf32>) -> tensor<4x6xf32>
      %5 = "nova.matmul"(%4, %3) : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      "nova.yield"(%5) : (tensor<4x4xf32>) -> ()
    }) {anchor = "contract"} : (tensor<6x4xf32>) -> tensor<4x4xf32>
    return %1, %2 : tensor<6x5xf32>, tensor<4x4xf32>
  }
}

// ===== softmax is one row kernel
func.func @step(%x: tensor<6x8xf32> {nova.role = "input"}) -> tensor<6x8xf32> {
  %0 = "nova.amax"(%x) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
  %1 = "nova.sub"(%x, %0) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
  %2 = "nova.exp"(%1) : (tensor<6x8xf32>) -> tensor<6x8xf32>
  %3 = "nova.sum"(%2) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
  %4 = "nova.div"(%2, %3) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
  return %4 : tensor<6x8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}) -> tensor<6x8xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg1: tensor<6x8xf32>):
      %1 = "nova.amax"(%arg1) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
      %2 = "nova.sub"(%arg1, %1) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
      %3 = "nova.exp"(%2) : (tensor<6x8xf32>) -> tensor<6x8xf32>
      %4 = "nova.sum"(%3) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
      %5 = "nova.div"(%3, %4) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
      "nova.yield"(%5) : (tensor<6x8xf32>) -> ()
    }) {anchor = "row"} : (tensor<6x8xf32>) -> tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}

// ===== sums over rows beside sums over columns are column outputs
func.func @step(%g: tensor<6x8xf32> {nova.role = "input"}, %x: tensor<6x8xf32> {nova.role = "input"}) -> (tensor<6xf32>, tensor<8xf32>) {
  %0 = "nova.mul"(%g, %x) : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  %1 = "nova.sum"(%0) {dims = array<i64: 1>, keepdim = false} : (tensor<6x8xf32>) -> tensor<6xf32>
  %2 = "nova.sum"(%0) {dims = array<i64: 0>, keepdim = false} : (tensor<6x8xf32>) -> tensor<8xf32>
  return %1, %2 : tensor<6xf32>, tensor<8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}, %arg1: tensor<6x8xf32> {nova.role = "input"}) -> (tensor<6xf32>, tensor<8xf32>) {
    %0:2 = "nova.kernel"(%arg0, %arg1) ({
    ^bb0(%arg2: tensor<6x8xf32>, %arg3: tensor<6x8xf32>):
      %1 = "nova.mul"(%arg2, %arg3) : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
      %2 = "nova.sum"(%1) {dims = array<i64: 1>, keepdim = false} : (tensor<6x8xf32>) -> tensor<6xf32>
      %3 = "nova.sum"(%1) {dims = array<i64: 0>, keepdim = false} : (tensor<6x8xf32>) -> tensor<8xf32>
      "nova.yield"(%2, %3) : (tensor<6xf32>, tensor<8xf32>) -> ()
    }) {anchor = "row"} : (tensor<6x8xf32>, tensor<6x8xf32>) -> (tensor<6xf32>, tensor<8xf32>)
    return %0#0, %0#1 : tensor<6xf32>, tensor<8xf32>
  }
}

// ===== never across a change of the row mapping: the second sum runs along the other dimension
func.func @step(%x: tensor<6x8xf32> {nova.role = "input"}) -> tensor<8xf32> {
  %0 = "nova.sum"(%x) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
  %1 = "nova.div"(%x, %0) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
  %2 = "nova.transpose"(%1) {perm = array<i64: 1, 0>} : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %3 = "nova.amax"(%2) {dims = array<i64: 1>, keepdim = true} : (tensor<8x6xf32>) -> tensor<8x1xf32>
  %4 = "nova.sub"(%2, %3) : (tensor<8x6xf32>, tensor<8x1xf32>) -> tensor<8x6xf32>
  %5 = "nova.exp"(%4) : (tensor<8x6xf32>) -> tensor<8x6xf32>
  %6 = "nova.sum"(%5) {dims = array<i64: 1>, keepdim = false} : (tensor<8x6xf32>) -> tensor<8xf32>
  return %6 : tensor<8xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}) -> tensor<8xf32> {
    %0:2 = "nova.kernel"(%arg0) ({
    ^bb0(%arg1: tensor<6x8xf32>):
      %2 = "nova.sum"(%arg1) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
      %3 = "nova.div"(%arg1, %2) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
      %4 = "nova.transpose"(%3) {perm = array<i64: 1, 0>} : (tensor<6x8xf32>) -> tensor<8x6xf32>
      %5 = "nova.amax"(%4) {dims = array<i64: 1>, keepdim = true} : (tensor<8x6xf32>) -> tensor<8x1xf32>
      "nova.yield"(%2, %5) : (tensor<6x1xf32>, tensor<8x1xf32>) -> ()
    }) {anchor = "row"} : (tensor<6x8xf32>) -> (tensor<6x1xf32>, tensor<8x1xf32>)
    %1 = "nova.kernel"(%arg0, %0#0, %0#1) ({
    ^bb0(%arg1: tensor<6x8xf32>, %arg2: tensor<6x1xf32>, %arg3: tensor<8x1xf32>):
      %2 = "nova.div"(%arg1, %arg2) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
      %3 = "nova.transpose"(%2) {perm = array<i64: 1, 0>} : (tensor<6x8xf32>) -> tensor<8x6xf32>
      %4 = "nova.sub"(%3, %arg3) : (tensor<8x6xf32>, tensor<8x1xf32>) -> tensor<8x6xf32>
      %5 = "nova.exp"(%4) : (tensor<8x6xf32>) -> tensor<8x6xf32>
      %6 = "nova.sum"(%5) {dims = array<i64: 1>, keepdim = false} : (tensor<8x6xf32>) -> tensor<8xf32>
      "nova.yield"(%6) : (tensor<8xf32>) -> ()
    }) {anchor = "column"} : (tensor<6x8xf32>, tensor<6x1xf32>, tensor<8x1xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// ===== never into a cycle: a product between two reductions of one tensor keeps them apart
func.func @step(%x: tensor<6x8xf32> {nova.role = "input"}, %w: tensor<6x6xf32> {nova.role = "state"}) -> tensor<6xf32> {
  %0 = "nova.sum"(%x) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
  %1 = "nova.matmul"(%w, %0) : (tensor<6x6xf32>, tensor<6x1xf32>) -> tensor<6x1xf32>
  %2 = "nova.mul"(%x, %1) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
  %3 = "nova.sum"(%2) {dims = array<i64: 1>, keepdim = false} : (tensor<6x8xf32>) -> tensor<6xf32>
  return %3 : tensor<6xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}, %arg1: tensor<6x6xf32> {nova.role = "state"}) -> tensor<6xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<6x8xf32>):
      %3 = "nova.sum"(%arg2) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
      "nova.yield"(%3) : (tensor<6x1xf32>) -> ()
    }) {anchor = "row"} : (tensor<6x8xf32>) -> tensor<6x1xf32>
    %1 = "nova.kernel"(%arg1, %0) ({
    ^bb0(%arg2: tensor<6x6xf32>, %arg3: tensor<6x1xf32>):
      %3 = "nova.matmul"(%arg2, %arg3) : (tensor<6x6xf32>, tensor<6x1xf32>) -> tensor<6x1xf32>
      "nova.yield"(%3) : (tensor<6x1xf32>) -> ()
    }) {anchor = "contract"} : (tensor<6x6xf32>, tensor<6x1xf32>) -> tensor<6x1xf32>
    %2 = "nova.kernel"(%arg0, %1) ({
    ^bb0(%arg2: tensor<6x8xf32>, %arg3: tensor<6x1xf32>):
      %3 = "nova.mul"(%arg2, %arg3) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
      %4 = "nova.sum"(%3) {dims = array<i64: 1>, keepdim = false} : (tensor<6x8xf32>) -> tensor<6xf32>
      "nova.yield"(%4) : (tensor<6xf32>) -> ()
    }) {anchor = "row"} : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6xf32>
    return %2 : tensor<6xf32>
  }
}

// ===== a reshape without a common refinement is a view of memory between kernels
func.func @step(%x: tensor<6x4xf32> {nova.role = "input"}) -> tensor<4x6xf32> {
  %0 = "nova.exp"(%x) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %1 = "nova.reshape"(%0) {shape = array<i64: 4, 6>} : (tensor<6x4xf32>) -> tensor<4x6xf32>
  %2 = "nova.sum"(%1) {dims = array<i64: 1>, keepdim = true} : (tensor<4x6xf32>) -> tensor<4x1xf32>
  %3 = "nova.div"(%1, %2) : (tensor<4x6xf32>, tensor<4x1xf32>) -> tensor<4x6xf32>
  return %3 : tensor<4x6xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x4xf32> {nova.role = "input"}) -> tensor<4x6xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg1: tensor<6x4xf32>):
      %3 = "nova.exp"(%arg1) : (tensor<6x4xf32>) -> tensor<6x4xf32>
      "nova.yield"(%3) : (tensor<6x4xf32>) -> ()
    }) {anchor = "map"} : (tensor<6x4xf32>) -> tensor<6x4xf32>
    %1 = "nova.reshape"(%0) {shape = array<i64: 4, 6>} : (tensor<6x4xf32>) -> tensor<4x6xf32>
    %2 = "nova.kernel"(%1) ({
    ^bb0(%arg1: tensor<4x6xf32>):
      %3 = "nova.sum"(%arg1) {dims = array<i64: 1>, keepdim = true} : (tensor<4x6xf32>) -> tensor<4x1xf32>
      %4 = "nova.div"(%arg1, %3) : (tensor<4x6xf32>, tensor<4x1xf32>) -> tensor<4x6xf32>
      "nova.yield"(%4) : (tensor<4x6xf32>) -> ()
    }) {anchor = "row"} : (tensor<4x6xf32>) -> tensor<4x6xf32>
    return %2 : tensor<4x6xf32>
  }
}

// ===== outputs and new state share memory with nothing
func.func @step(%p: tensor<4xf32> {nova.role = "state"}, %q: tensor<4xf32> {nova.role = "state"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "nova.exp"(%p) : (tensor<4xf32>) -> tensor<4xf32>
  "nova.assign"(%p, %0) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return %0, %q : tensor<4xf32>, tensor<4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<4xf32> {nova.role = "state"}) -> (tensor<4xf32>, tensor<4xf32>) {
    %0:2 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<4xf32>):
      %2 = "nova.exp"(%arg2) : (tensor<4xf32>) -> tensor<4xf32>
      "nova.yield"(%2, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
    }) {anchor = "map"} : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1 = "nova.kernel"(%arg1) ({
    ^bb0(%arg2: tensor<4xf32>):
      "nova.yield"(%arg2) : (tensor<4xf32>) -> ()
    }) {anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
    "nova.assign"(%arg0, %0#1) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return %0#0, %1 : tensor<4xf32>, tensor<4xf32>
  }
}

// ===== checks come before assigns, several have one guard
func.func @step(%p: tensor<4xf32> {nova.role = "state"}, %i: tensor<5xi32> {nova.role = "input"}, %j: tensor<7xi32> {nova.role = "input"}) {
  %0 = "nova.amax"(%i) {dims = array<i64: 0>, keepdim = false} : (tensor<5xi32>) -> tensor<i32>
  "nova.check"(%0) {index = 0 : i64, message = "i"} : (tensor<i32>) -> ()
  %1 = "nova.amax"(%j) {dims = array<i64: 0>, keepdim = false} : (tensor<7xi32>) -> tensor<i32>
  "nova.check"(%1) {index = 1 : i64, message = "j"} : (tensor<i32>) -> ()
  %2 = "nova.exp"(%p) : (tensor<4xf32>) -> tensor<4xf32>
  "nova.assign"(%p, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return
}
// -----
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<5xi32> {nova.role = "input"}, %arg2: tensor<7xi32> {nova.role = "input"}) {
    %0 = "nova.kernel"(%arg1) ({
    ^bb0(%arg3: tensor<5xi32>):
      %4 = "nova.amax"(%arg3) {dims = array<i64: 0>, keepdim = false} : (tensor<5xi32>) -> tensor<i32>
      "nova.yield"(%4) : (tensor<i32>) -> ()
    }) {anchor = "row"} : (tensor<5xi32>) -> tensor<i32>
    %1 = "nova.kernel"(%arg2) ({
    ^bb0(%arg3: tensor<7xi32>):
      %4 = "nova.amax"(%arg3) {dims = array<i64: 0>, keepdim = false} : (tensor<7xi32>) -> tensor<i32>
      "nova.yield"(%4) : (tensor<i32>) -> ()
    }) {anchor = "row"} : (tensor<7xi32>) -> tensor<i32>
    %2 = "nova.kernel"(%arg0) ({
    ^bb0(%arg3: tensor<4xf32>):
      %4 = "nova.exp"(%arg3) : (tensor<4xf32>) -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
    %3 = "nova.kernel"(%0, %1) ({
    ^bb0(%arg3: tensor<i32>, %arg4: tensor<i32>):
      %4 = "nova.bitwise_or"(%arg3, %arg4) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      "nova.yield"(%4) : (tensor<i32>) -> ()
    }) {anchor = "map"} : (tensor<i32>, tensor<i32>) -> tensor<i32>
    "nova.check"(%3) {index = -1 : i64, message = "any check"} : (tensor<i32>) -> ()
    "nova.check"(%0) {index = 0 : i64, message = "i"} : (tensor<i32>) -> ()
    "nova.check"(%1) {index = 1 : i64, message = "j"} : (tensor<i32>) -> ()
    "nova.assign"(%arg0, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return
  }
}

// ===== nothing to compute
func.func @step(%p: tensor<4xf32> {nova.role = "state"}) {
  return
}
// ----- unchanged

// ===== a running sum reads memory: what its operand is computed from, and what its result goes into, are other kernels
func.func @step(%x: tensor<6x4xf32> {nova.role = "input"}) -> tensor<6x4xf32> {
  %0 = "nova.exp"(%x) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %1 = "nova.cumsum"(%0) {dim = 1 : i64} : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %2 = "nova.neg"(%1) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  return %2 : tensor<6x4xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<6x4xf32> {nova.role = "input"}) -> tensor<6x4xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg1: tensor<6x4xf32>):
      %3 = "nova.exp"(%arg1) : (tensor<6x4xf32>) -> tensor<6x4xf32>
      "nova.yield"(%3) : (tensor<6x4xf32>) -> ()
    }) {anchor = "map"} : (tensor<6x4xf32>) -> tensor<6x4xf32>
    %1 = "nova.kernel"(%0) ({
    ^bb0(%arg1: tensor<6x4xf32>):
      %3 = "nova.cumsum"(%arg1) {dim = 1 : i64} : (tensor<6x4xf32>) -> tensor<6x4xf32>
      "nova.yield"(%3) : (tensor<6x4xf32>) -> ()
    }) {anchor = "scan"} : (tensor<6x4xf32>) -> tensor<6x4xf32>
    %2 = "nova.kernel"(%1) ({
    ^bb0(%arg1: tensor<6x4xf32>):
      %3 = "nova.neg"(%arg1) : (tensor<6x4xf32>) -> tensor<6x4xf32>
      "nova.yield"(%3) : (tensor<6x4xf32>) -> ()
    }) {anchor = "map"} : (tensor<6x4xf32>) -> tensor<6x4xf32>
    return %2 : tensor<6x4xf32>
  }
}

// ===== an operation without a kernel
func.func @step(%x: tensor<6x4xf32> {nova.role = "input"}) -> tensor<6x4xi64> {
  %0 = "nova.argsort"(%x) {descending = false, dim = 1 : i64} : (tensor<6x4xf32>) -> tensor<6x4xi64>
  return %0 : tensor<6x4xi64>
}
// ----- refused: argsort cannot be compiled: argsort has no generator
