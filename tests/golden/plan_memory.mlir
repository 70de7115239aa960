// ===== state in place, results over dying operands
func.func @step(%p: tensor<4xf32> {nova.role = "state"}, %q: tensor<4xf32> {nova.role = "state"}, %x: tensor<4xf32> {nova.role = "input"}) {
  %g0 = "nova.kernel"(%x) ({
  ^bb0(%a0: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0 : tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %o: f32):
      %m = arith.mulf %s0, %s0 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
  %g1 = "nova.kernel"(%g0, %g0) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u0 = "nova.kernel"(%p, %g1) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  "nova.assign"(%p, %u0) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return
}
// -----
#map = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<4xf32> {nova.role = "state"}, %arg2: tensor<4xf32> {nova.role = "input"}) attributes {nova.arena_bytes = 128 : i64, nova.live_bytes = 128 : i64, nova.memory = [["input:2", "arena:0"], ["arena:0", "arena:0", "arena:64"], ["input:0", "arena:64", "input:0"]], nova.predicated = array<i64: 0, 0, 0>} {
    %0 = "nova.kernel"(%arg2) ({
    ^bb0(%arg3: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %5 = arith.mulf %in, %in : f32
        linalg.yield %5 : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.kernel"(%0, %0) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %5 = arith.mulf %in, %in_0 : f32
        linalg.yield %5 : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.kernel"(%arg0, %1) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %5 = arith.mulf %in, %in_0 : f32
        linalg.yield %5 : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: 0>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    "nova.assign"(%arg0, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return
  }
}

// ===== state that is read later is copied at the end
func.func @step(%p: tensor<4xf32> {nova.role = "state"}, %q: tensor<4xf32> {nova.role = "state"}, %x: tensor<4xf32> {nova.role = "input"}) {
  %u0 = "nova.kernel"(%p, %x) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u1 = "nova.kernel"(%p, %u0) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  "nova.assign"(%p, %u0) : (tensor<4xf32>, tensor<4xf32>) -> ()
  "nova.assign"(%q, %u1) : (tensor<4xf32>, tensor<4xf32>) -> ()
  return
}
// -----
#map = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<4xf32> {nova.role = "state"}, %arg2: tensor<4xf32> {nova.role = "input"}) attributes {nova.arena_bytes = 64 : i64, nova.live_bytes = 64 : i64, nova.memory = [["input:0", "input:2", "arena:0"], ["input:0", "arena:0", "input:1"], ["arena:0", "input:0"]], nova.predicated = array<i64: 0, 0, 0>} {
    %0 = "nova.kernel"(%arg0, %arg2) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %5 = arith.mulf %in, %in_0 : f32
        linalg.yield %5 : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.kernel"(%arg0, %0) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %5 = arith.mulf %in, %in_0 : f32
        linalg.yield %5 : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.kernel"(%0) ({
    ^bb0(%arg3: tensor<4xf32>):
      %3 = tensor.empty() : tensor<4xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<4xf32>) outs(%3 : tensor<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        linalg.yield %in : f32
      } -> tensor<4xf32>
      "nova.yield"(%4) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
    "nova.assign"(%arg0, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
    "nova.assign"(%arg1, %1) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return
  }
}
