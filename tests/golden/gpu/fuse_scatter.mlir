// ===== the update of a table's parameter
func.func @step(%ids: tensor<8xi64>, %rows: tensor<8x4xf32>, %p: tensor<9x4xf32>, %lr: tensor<f32>) -> tensor<9x4xf32> {
  %0 = "nova.kernel"(%ids, %rows) ({
  ^bb0(%i: tensor<8xi64>, %r: tensor<8x4xf32>):
    %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
    "nova.yield"(%g) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "scatter"} : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
  %1 = "nova.kernel"(%p, %0, %lr) ({
  ^bb0(%q: tensor<9x4xf32>, %h: tensor<9x4xf32>, %s: tensor<f32>):
    %e = tensor.empty() : tensor<9x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%q, %h, %s : tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) outs(%e : tensor<9x4xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
      %m = arith.mulf %y, %z : f32
      %d = arith.subf %x, %m : f32
      linalg.yield %d : f32
    } -> tensor<9x4xf32>
    "nova.yield"(%n) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) -> tensor<9x4xf32>
  return %1 : tensor<9x4xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> ()>
module {
  func.func @step(%arg0: tensor<8xi64>, %arg1: tensor<8x4xf32>, %arg2: tensor<9x4xf32>, %arg3: tensor<f32>) -> tensor<9x4xf32> {
    %0 = "nova.kernel"(%arg0, %arg1, %arg2, %arg3) ({
    ^bb0(%arg4: tensor<8xi64>, %arg5: tensor<8x4xf32>, %arg6: tensor<9x4xf32>, %arg7: tensor<f32>):
      %1 = "nova.scatter_add"(%arg4, %arg5) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
      %2 = tensor.empty() : tensor<9x4xf32>
      %3 = linalg.generic {indexing_maps = [#map, #map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%arg6, %1, %arg7 : tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) outs(%2 : tensor<9x4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %in_1: f32, %out: f32):
        %4 = arith.mulf %in_0, %in_1 : f32
        %5 = arith.subf %in, %4 : f32
        linalg.yield %5 : f32
      } -> tensor<9x4xf32>
      "nova.yield"(%3) : (tensor<9x4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "scatter"} : (tensor<8xi64>, tensor<8x4xf32>, tensor<9x4xf32>, tensor<f32>) -> tensor<9x4xf32>
    return %0 : tensor<9x4xf32>
  }
}

// ===== the sums are read twice
func.func @step(%ids: tensor<8xi64>, %rows: tensor<8x4xf32>, %p: tensor<9x4xf32>, %lr: tensor<f32>) -> (tensor<9x4xf32>, tensor<9x4xf32>) {
  %0 = "nova.kernel"(%ids, %rows) ({
  ^bb0(%i: tensor<8xi64>, %r: tensor<8x4xf32>):
    %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
    "nova.yield"(%g) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "scatter"} : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
  %1 = "nova.kernel"(%p, %0, %lr) ({
  ^bb0(%q: tensor<9x4xf32>, %h: tensor<9x4xf32>, %s: tensor<f32>):
    %e = tensor.empty() : tensor<9x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%q, %h, %s : tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) outs(%e : tensor<9x4xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
      %m = arith.mulf %y, %z : f32
      %d = arith.subf %x, %m : f32
      linalg.yield %d : f32
    } -> tensor<9x4xf32>
    "nova.yield"(%n) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) -> tensor<9x4xf32>
  return %0, %1 : tensor<9x4xf32>, tensor<9x4xf32>
}
// ----- unchanged

// ===== a kernel that may be skipped
func.func @step(%ids: tensor<8xi64>, %rows: tensor<8x4xf32>, %p: tensor<9x4xf32>, %lr: tensor<f32>) -> tensor<9x4xf32> {
  %0 = "nova.kernel"(%ids, %rows) ({
  ^bb0(%i: tensor<8xi64>, %r: tensor<8x4xf32>):
    %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
    "nova.yield"(%g) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "scatter"} : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
  %1 = "nova.kernel"(%p, %0, %lr) ({
  ^bb0(%q: tensor<9x4xf32>, %h: tensor<9x4xf32>, %s: tensor<f32>):
    %e = tensor.empty() : tensor<9x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> ()>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%q, %h, %s : tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) outs(%e : tensor<9x4xf32>) {
    ^bb0(%x: f32, %y: f32, %z: f32, %o: f32):
      %m = arith.mulf %y, %z : f32
      %d = arith.subf %x, %m : f32
      linalg.yield %d : f32
    } -> tensor<9x4xf32>
    "nova.yield"(%n) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map", nova.keep = array<i64: 0>, nova.skip = 2 : i64} : (tensor<9x4xf32>, tensor<9x4xf32>, tensor<f32>) -> tensor<9x4xf32>
  return %1 : tensor<9x4xf32>
}
// ----- unchanged

// ===== other loops than the table's
func.func @step(%ids: tensor<8xi64>, %rows: tensor<8x4xf32>) -> tensor<9x3xf32> {
  %0 = "nova.kernel"(%ids, %rows) ({
  ^bb0(%i: tensor<8xi64>, %r: tensor<8x4xf32>):
    %g = "nova.scatter_add"(%i, %r) : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
    "nova.yield"(%g) : (tensor<9x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "scatter"} : (tensor<8xi64>, tensor<8x4xf32>) -> tensor<9x4xf32>
  %1 = "nova.kernel"(%0) ({
  ^bb0(%h: tensor<9x4xf32>):
    %e = tensor.empty() : tensor<9x3xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j + 1)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%h : tensor<9x4xf32>) outs(%e : tensor<9x3xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<9x3xf32>
    "nova.yield"(%n) : (tensor<9x3xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<9x4xf32>) -> tensor<9x3xf32>
  return %1 : tensor<9x3xf32>
}
// ----- unchanged
