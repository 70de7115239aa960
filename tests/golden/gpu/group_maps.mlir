// ===== updates wait for the last of their group
func.func @step(%p: tensor<8xf32> {nova.role = "state"}, %q: tensor<4x4xf32> {nova.role = "state"}, %t: tensor<8xf32>) -> tensor<8xf32> {
  %g = "nova.kernel"(%t) ({
  ^bb0(%a: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
  %0 = "nova.kernel"(%p, %g) ({
  ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %h = "nova.kernel"(%g) ({
  ^bb0(%a: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "nova.kernel"(%q, %q) ({
  ^bb0(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>):
    %e = tensor.empty() : tensor<4x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<4x4xf32>
    "nova.yield"(%n) : (tensor<4x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  "nova.assign"(%p, %0) : (tensor<8xf32>, tensor<8xf32>) -> ()
  "nova.assign"(%q, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
  return %h : tensor<8xf32>
}
// -----
#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1) -> (d0, d1)>
module {
  func.func @step(%arg0: tensor<8xf32> {nova.role = "state"}, %arg1: tensor<4x4xf32> {nova.role = "state"}, %arg2: tensor<8xf32>) -> tensor<8xf32> {
    %0 = "nova.kernel"(%arg2) ({
    ^bb0(%arg3: tensor<8xf32>):
      %3 = tensor.empty() : tensor<8xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<8xf32>) outs(%3 : tensor<8xf32>) {
      ^bb0(%in: f32, %out: f32):
        %5 = arith.negf %in : f32
        linalg.yield %5 : f32
      } -> tensor<8xf32>
      "nova.yield"(%4) : (tensor<8xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
    %1 = "nova.kernel"(%0) ({
    ^bb0(%arg3: tensor<8xf32>):
      %3 = tensor.empty() : tensor<8xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<8xf32>) outs(%3 : tensor<8xf32>) {
      ^bb0(%in: f32, %out: f32):
        %5 = arith.negf %in : f32
        linalg.yield %5 : f32
      } -> tensor<8xf32>
      "nova.yield"(%4) : (tensor<8xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
    %2:2 = "nova.kernel"(%arg0, %0, %arg1) ({
    ^bb0(%arg3: tensor<8xf32>, %arg4: tensor<8xf32>, %arg5: tensor<4x4xf32>):
      %3 = tensor.empty() : tensor<8xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<8xf32>, tensor<8xf32>) outs(%3 : tensor<8xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %7 = arith.subf %in, %in_0 : f32
        linalg.yield %7 : f32
      } -> tensor<8xf32>
      %5 = tensor.empty() : tensor<4x4xf32>
      %6 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel"]} ins(%arg5, %arg5 : tensor<4x4xf32>, tensor<4x4xf32>) outs(%5 : tensor<4x4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %7 = arith.subf %in, %in_0 : f32
        linalg.yield %7 : f32
      } -> tensor<4x4xf32>
      "nova.yield"(%4, %6) : (tensor<8xf32>, tensor<4x4xf32>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>, tensor<4x4xf32>) -> (tensor<8xf32>, tensor<4x4xf32>)
    "nova.assign"(%arg0, %2#0) : (tensor<8xf32>, tensor<8xf32>) -> ()
    "nova.assign"(%arg1, %2#1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
    return %1 : tensor<8xf32>
  }
}

// ===== what reads arguments alone is made with the first of its group
func.func @step(%p: tensor<8xf32>, %q: tensor<4x4xf32>, %t: tensor<8xf32>) -> (tensor<8xf32>, tensor<4x4xf32>) {
  %0 = "nova.kernel"(%p) ({
  ^bb0(%a: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xbf16>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xbf16>) {
    ^bb0(%x: f32, %o: bf16):
      %d = arith.truncf %x : f32 to bf16
      linalg.yield %d : bf16
    } -> tensor<8xbf16>
    "nova.yield"(%n) : (tensor<8xbf16>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xbf16>
  %1 = "nova.kernel"(%q) ({
  ^bb0(%a: tensor<4x4xf32>):
    %e = tensor.empty() : tensor<4x4xbf16>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<4x4xf32>) outs(%e : tensor<4x4xbf16>) {
    ^bb0(%x: f32, %o: bf16):
      %d = arith.truncf %x : f32 to bf16
      linalg.yield %d : bf16
    } -> tensor<4x4xbf16>
    "nova.yield"(%n) : (tensor<4x4xbf16>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %2 = "nova.kernel"(%0) ({
  ^bb0(%a: tensor<8xbf16>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xbf16>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: bf16, %o: f32):
      %d = arith.extf %x : bf16 to f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xbf16>) -> tensor<8xf32>
  %3 = "nova.kernel"(%1) ({
  ^bb0(%a: tensor<4x4xbf16>):
    %e = tensor.empty() : tensor<4x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a : tensor<4x4xbf16>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%x: bf16, %o: f32):
      %d = arith.extf %x : bf16 to f32
      linalg.yield %d : f32
    } -> tensor<4x4xf32>
    "nova.yield"(%n) : (tensor<4x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xbf16>) -> tensor<4x4xf32>
  return %2, %3 : tensor<8xf32>, tensor<4x4xf32>
}
// -----
#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1) -> (d0, d1)>
module {
  func.func @step(%arg0: tensor<8xf32>, %arg1: tensor<4x4xf32>, %arg2: tensor<8xf32>) -> (tensor<8xf32>, tensor<4x4xf32>) {
    %0:2 = "nova.kernel"(%arg0, %arg1) ({
    ^bb0(%arg3: tensor<8xf32>, %arg4: tensor<4x4xf32>):
      %3 = tensor.empty() : tensor<8xbf16>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<8xf32>) outs(%3 : tensor<8xbf16>) {
      ^bb0(%in: f32, %out: bf16):
        %7 = arith.truncf %in : f32 to bf16
        linalg.yield %7 : bf16
      } -> tensor<8xbf16>
      %5 = tensor.empty() : tensor<4x4xbf16>
      %6 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel"]} ins(%arg4 : tensor<4x4xf32>) outs(%5 : tensor<4x4xbf16>) {
      ^bb0(%in: f32, %out: bf16):
        %7 = arith.truncf %in : f32 to bf16
        linalg.yield %7 : bf16
      } -> tensor<4x4xbf16>
      "nova.yield"(%4, %6) : (tensor<8xbf16>, tensor<4x4xbf16>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<4x4xf32>) -> (tensor<8xbf16>, tensor<4x4xbf16>)
    %1 = "nova.kernel"(%0#0) ({
    ^bb0(%arg3: tensor<8xbf16>):
      %3 = tensor.empty() : tensor<8xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<8xbf16>) outs(%3 : tensor<8xf32>) {
      ^bb0(%in: bf16, %out: f32):
        %5 = arith.extf %in : bf16 to f32
        linalg.yield %5 : f32
      } -> tensor<8xf32>
      "nova.yield"(%4) : (tensor<8xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xbf16>) -> tensor<8xf32>
    %2 = "nova.kernel"(%0#1) ({
    ^bb0(%arg3: tensor<4x4xbf16>):
      %3 = tensor.empty() : tensor<4x4xf32>
      %4 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel"]} ins(%arg3 : tensor<4x4xbf16>) outs(%3 : tensor<4x4xf32>) {
      ^bb0(%in: bf16, %out: f32):
        %5 = arith.extf %in : bf16 to f32
        linalg.yield %5 : f32
      } -> tensor<4x4xf32>
      "nova.yield"(%4) : (tensor<4x4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xbf16>) -> tensor<4x4xf32>
    return %1, %2 : tensor<8xf32>, tensor<4x4xf32>
  }
}

// ===== new state that is an output, too, is made where it was
func.func @step(%p: tensor<8xf32> {nova.role = "state"}, %q: tensor<4x4xf32> {nova.role = "state"}, %t: tensor<8xf32>) -> tensor<8xf32> {
  %g = "nova.kernel"(%t) ({
  ^bb0(%a: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
  %0 = "nova.kernel"(%p, %g) ({
  ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = "nova.kernel"(%q, %q) ({
  ^bb0(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>):
    %e = tensor.empty() : tensor<4x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<4x4xf32>
    "nova.yield"(%n) : (tensor<4x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  "nova.assign"(%p, %0) : (tensor<8xf32>, tensor<8xf32>) -> ()
  "nova.assign"(%q, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
  return %0 : tensor<8xf32>
}
// ----- unchanged

// ===== a kernel that is worth a launch has one
func.func @step(%p: tensor<4194304xf32> {nova.role = "state"}, %q: tensor<4x4xf32> {nova.role = "state"}) {
  %0 = "nova.kernel"(%p, %p) ({
  ^bb0(%a: tensor<4194304xf32>, %b: tensor<4194304xf32>):
    %e = tensor.empty() : tensor<4194304xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<4194304xf32>, tensor<4194304xf32>) outs(%e : tensor<4194304xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<4194304xf32>
    "nova.yield"(%n) : (tensor<4194304xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4194304xf32>, tensor<4194304xf32>) -> tensor<4194304xf32>
  %1 = "nova.kernel"(%q, %q) ({
  ^bb0(%a: tensor<4x4xf32>, %b: tensor<4x4xf32>):
    %e = tensor.empty() : tensor<4x4xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%a, %b : tensor<4x4xf32>, tensor<4x4xf32>) outs(%e : tensor<4x4xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = arith.subf %x, %y : f32
      linalg.yield %d : f32
    } -> tensor<4x4xf32>
    "nova.yield"(%n) : (tensor<4x4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  "nova.assign"(%p, %0) : (tensor<4194304xf32>, tensor<4194304xf32>) -> ()
  "nova.assign"(%q, %1) : (tensor<4x4xf32>, tensor<4x4xf32>) -> ()
  return
}
// ----- unchanged

// ===== views of arguments come along with what reads them early
func.func @step(%p: tensor<8xf32>, %q: tensor<4x4xf32>) -> (tensor<8xf32>, tensor<16xf32>) {
  %g = "nova.kernel"(%p) ({
  ^bb0(%a: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%n) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>) -> tensor<8xf32>
  %v = "nova.reshape"(%q) {shape = array<i64: 16>} : (tensor<4x4xf32>) -> tensor<16xf32>
  %h = "nova.kernel"(%v) ({
  ^bb0(%a: tensor<16xf32>):
    %e = tensor.empty() : tensor<16xf32>
    %n = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a : tensor<16xf32>) outs(%e : tensor<16xf32>) {
    ^bb0(%x: f32, %o: f32):
      %d = arith.negf %x : f32
      linalg.yield %d : f32
    } -> tensor<16xf32>
    "nova.yield"(%n) : (tensor<16xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<16xf32>) -> tensor<16xf32>
  %r:2 = "nova.kernel"(%g, %h) ({
  ^bb0(%a: tensor<8xf32>, %b: tensor<16xf32>):
    "nova.yield"(%a, %b) : (tensor<8xf32>, tensor<16xf32>) -> ()
  }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<16xf32>) -> (tensor<8xf32>, tensor<16xf32>)
  return %r#0, %r#1 : tensor<8xf32>, tensor<16xf32>
}
// -----
#map = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<8xf32>, %arg1: tensor<4x4xf32>) -> (tensor<8xf32>, tensor<16xf32>) {
    %0 = "nova.reshape"(%arg1) {shape = array<i64: 16>} : (tensor<4x4xf32>) -> tensor<16xf32>
    %1:2 = "nova.kernel"(%arg0, %0) ({
    ^bb0(%arg2: tensor<8xf32>, %arg3: tensor<16xf32>):
      %3 = tensor.empty() : tensor<8xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg2 : tensor<8xf32>) outs(%3 : tensor<8xf32>) {
      ^bb0(%in: f32, %out: f32):
        %7 = arith.negf %in : f32
        linalg.yield %7 : f32
      } -> tensor<8xf32>
      %5 = tensor.empty() : tensor<16xf32>
      %6 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<16xf32>) outs(%5 : tensor<16xf32>) {
      ^bb0(%in: f32, %out: f32):
        %7 = arith.negf %in : f32
        linalg.yield %7 : f32
      } -> tensor<16xf32>
      "nova.yield"(%4, %6) : (tensor<8xf32>, tensor<16xf32>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<16xf32>) -> (tensor<8xf32>, tensor<16xf32>)
    %2:2 = "nova.kernel"(%1#0, %1#1) ({
    ^bb0(%arg2: tensor<8xf32>, %arg3: tensor<16xf32>):
      "nova.yield"(%arg2, %arg3) : (tensor<8xf32>, tensor<16xf32>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<16xf32>) -> (tensor<8xf32>, tensor<16xf32>)
    return %2#0, %2#1 : tensor<8xf32>, tensor<16xf32>
  }
}

// ===== new state of another shape than its update: its view goes behind what is launched late
func.func @step(%p: tensor<1x8xf32> {nova.role = "state"}, %q: tensor<8xf32> {nova.role = "state"}, %x: tensor<8x8xf32>) -> tensor<8xf32> {
  %v = "nova.reshape"(%p) {shape = array<i64: 8>} : (tensor<1x8xf32>) -> tensor<8xf32>
  %n = "nova.kernel"(%v, %q) ({
  ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %d = arith.subf %i, %j : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%r) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %w = "nova.reshape"(%n) {shape = array<i64: 1, 8>} : (tensor<8xf32>) -> tensor<1x8xf32>
  %s = "nova.kernel"(%x) ({
  ^bb0(%a: tensor<8x8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %z = arith.constant 0.0 : f32
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<8xf32>) -> tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>], iterator_types = ["parallel", "reduction"]} ins(%a : tensor<8x8xf32>) outs(%f : tensor<8xf32>) {
    ^bb0(%i: f32, %o: f32):
      %d = arith.addf %i, %o : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%r) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<8x8xf32>) -> tensor<8xf32>
  %m = "nova.kernel"(%q, %s) ({
  ^bb0(%a: tensor<8xf32>, %b: tensor<8xf32>):
    %e = tensor.empty() : tensor<8xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%a, %b : tensor<8xf32>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
    ^bb0(%i: f32, %j: f32, %o: f32):
      %d = arith.subf %i, %j : f32
      linalg.yield %d : f32
    } -> tensor<8xf32>
    "nova.yield"(%r) : (tensor<8xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  "nova.assign"(%p, %w) : (tensor<1x8xf32>, tensor<1x8xf32>) -> ()
  "nova.assign"(%q, %m) : (tensor<8xf32>, tensor<8xf32>) -> ()
  return %s : tensor<8xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d0)>
#map2 = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<1x8xf32> {nova.role = "state"}, %arg1: tensor<8xf32> {nova.role = "state"}, %arg2: tensor<8x8xf32>) -> tensor<8xf32> {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 8>} : (tensor<1x8xf32>) -> tensor<8xf32>
    %1 = "nova.kernel"(%arg2) ({
    ^bb0(%arg3: tensor<8x8xf32>):
      %4 = tensor.empty() : tensor<8xf32>
      %cst = arith.constant 0.000000e+00 : f32
      %5 = linalg.fill ins(%cst : f32) outs(%4 : tensor<8xf32>) -> tensor<8xf32>
      %6 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "reduction"]} ins(%arg3 : tensor<8x8xf32>) outs(%5 : tensor<8xf32>) {
      ^bb0(%in: f32, %out: f32):
        %7 = arith.addf %in, %out : f32
        linalg.yield %7 : f32
      } -> tensor<8xf32>
      "nova.yield"(%6) : (tensor<8xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<8x8xf32>) -> tensor<8xf32>
    %2:2 = "nova.kernel"(%0, %arg1, %1) ({
    ^bb0(%arg3: tensor<8xf32>, %arg4: tensor<8xf32>, %arg5: tensor<8xf32>):
      %4 = tensor.empty() : tensor<8xf32>
      %5 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<8xf32>, tensor<8xf32>) outs(%4 : tensor<8xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %8 = arith.subf %in, %in_0 : f32
        linalg.yield %8 : f32
      } -> tensor<8xf32>
      %6 = tensor.empty() : tensor<8xf32>
      %7 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel"]} ins(%arg4, %arg5 : tensor<8xf32>, tensor<8xf32>) outs(%6 : tensor<8xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %8 = arith.subf %in, %in_0 : f32
        linalg.yield %8 : f32
      } -> tensor<8xf32>
      "nova.yield"(%5, %7) : (tensor<8xf32>, tensor<8xf32>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "map"} : (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
    %3 = "nova.reshape"(%2#0) {shape = array<i64: 1, 8>} : (tensor<8xf32>) -> tensor<1x8xf32>
    "nova.assign"(%arg0, %3) : (tensor<1x8xf32>, tensor<1x8xf32>) -> ()
    "nova.assign"(%arg1, %2#1) : (tensor<8xf32>, tensor<8xf32>) -> ()
    return %1 : tensor<8xf32>
  }
}
