// ===== an update moves behind the gradient it reads, and behind the last reader of the old parameter
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
  %g1 = "nova.kernel"(%x, %p) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u0 = "nova.kernel"(%p, %g0) ({
  ^bb0(%a0: tensor<4xf32>, %a1: tensor<4xf32>):
    %e = tensor.empty() : tensor<4xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<4xf32>
    "nova.yield"(%g) : (tensor<4xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u1 = "nova.kernel"(%q, %g1) ({
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
  func.func @step(%arg0: tensor<4xf32> {nova.role = "state"}, %arg1: tensor<4xf32> {nova.role = "state"}, %arg2: tensor<4xf32> {nova.role = "input"}) {
    %0 = "nova.kernel"(%arg2) ({
    ^bb0(%arg3: tensor<4xf32>):
      %4 = tensor.empty() : tensor<4xf32>
      %5 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg3 : tensor<4xf32>) outs(%4 : tensor<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %6 = arith.mulf %in, %in : f32
        linalg.yield %6 : f32
      } -> tensor<4xf32>
      "nova.yield"(%5) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = "nova.kernel"(%arg2, %arg0) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %4 = tensor.empty() : tensor<4xf32>
      %5 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%4 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %6 = arith.mulf %in, %in_0 : f32
        linalg.yield %6 : f32
      } -> tensor<4xf32>
      "nova.yield"(%5) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %2 = "nova.kernel"(%arg0, %0) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %4 = tensor.empty() : tensor<4xf32>
      %5 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%4 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %6 = arith.mulf %in, %in_0 : f32
        linalg.yield %6 : f32
      } -> tensor<4xf32>
      "nova.yield"(%5) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %3 = "nova.kernel"(%arg1, %1) ({
    ^bb0(%arg3: tensor<4xf32>, %arg4: tensor<4xf32>):
      %4 = tensor.empty() : tensor<4xf32>
      %5 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg3, %arg4 : tensor<4xf32>, tensor<4xf32>) outs(%4 : tensor<4xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %6 = arith.mulf %in, %in_0 : f32
        linalg.yield %6 : f32
      } -> tensor<4xf32>
      "nova.yield"(%5) : (tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    "nova.assign"(%arg0, %2) : (tensor<4xf32>, tensor<4xf32>) -> ()
    "nova.assign"(%arg1, %3) : (tensor<4xf32>, tensor<4xf32>) -> ()
    return
  }
}

// ===== a chain has one order
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
  %g1 = "nova.kernel"(%g0, %p) ({
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
// ----- unchanged

// ===== buckets start where their last gradient is written; the first is waited for when 3 are under way, its update follows; the third is kept for the small last one
func.func @step(%p0: tensor<64xf32> {nova.role = "state"}, %p1: tensor<64xf32> {nova.role = "state"}, %p2: tensor<64xf32> {nova.role = "state"}, %p3: tensor<16xf32> {nova.role = "state"}, %x: tensor<64xf32> {nova.role = "input"}, %y: tensor<16xf32> {nova.role = "input"}) {
  %g0 = "nova.kernel"(%x, %p0) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g1 = "nova.kernel"(%x, %p1) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g2 = "nova.kernel"(%x, %p2) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g3 = "nova.kernel"(%y, %p3) ({
  ^bb0(%a0: tensor<16xf32>, %a1: tensor<16xf32>):
    %e = tensor.empty() : tensor<16xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<16xf32>, tensor<16xf32>) outs(%e : tensor<16xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<16xf32>
    "nova.yield"(%g) : (tensor<16xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %b0 = "nova.bucket_ready"(%g0) {bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w0 = "nova.bucket_wait"(%b0) : (tensor<64xf32>) -> tensor<64xf32>
  %b1 = "nova.bucket_ready"(%g1) {bucket = 1 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w1 = "nova.bucket_wait"(%b1) : (tensor<64xf32>) -> tensor<64xf32>
  %b2 = "nova.bucket_ready"(%g2) {bucket = 2 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w2 = "nova.bucket_wait"(%b2) : (tensor<64xf32>) -> tensor<64xf32>
  %b3 = "nova.bucket_ready"(%g3) {bucket = 3 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<16xf32>) -> tensor<16xf32>
  %w3 = "nova.bucket_wait"(%b3) : (tensor<16xf32>) -> tensor<16xf32>
  %u0 = "nova.kernel"(%p0, %w0) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u1 = "nova.kernel"(%p1, %w1) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u2 = "nova.kernel"(%p2, %w2) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u3 = "nova.kernel"(%p3, %w3) ({
  ^bb0(%a0: tensor<16xf32>, %a1: tensor<16xf32>):
    %e = tensor.empty() : tensor<16xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<16xf32>, tensor<16xf32>) outs(%e : tensor<16xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<16xf32>
    "nova.yield"(%g) : (tensor<16xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  "nova.assign"(%p0, %u0) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p1, %u1) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p2, %u2) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p3, %u3) : (tensor<16xf32>, tensor<16xf32>) -> ()
  return
}
// -----
#map = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<64xf32> {nova.role = "state"}, %arg1: tensor<64xf32> {nova.role = "state"}, %arg2: tensor<64xf32> {nova.role = "state"}, %arg3: tensor<16xf32> {nova.role = "state"}, %arg4: tensor<64xf32> {nova.role = "input"}, %arg5: tensor<16xf32> {nova.role = "input"}) {
    %0 = "nova.kernel"(%arg4, %arg0) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %1 = "nova.bucket_ready"(%0) {bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %2 = "nova.kernel"(%arg4, %arg1) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %3 = "nova.bucket_ready"(%2) {bucket = 1 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %4 = "nova.kernel"(%arg4, %arg2) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %5 = "nova.bucket_ready"(%4) {bucket = 2 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %6 = "nova.bucket_wait"(%1) : (tensor<64xf32>) -> tensor<64xf32>
    %7 = "nova.kernel"(%arg0, %6) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %8 = "nova.kernel"(%arg5, %arg3) ({
    ^bb0(%arg6: tensor<16xf32>, %arg7: tensor<16xf32>):
      %16 = tensor.empty() : tensor<16xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<16xf32>, tensor<16xf32>) outs(%16 : tensor<16xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<16xf32>
      "nova.yield"(%17) : (tensor<16xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    %9 = "nova.bucket_ready"(%8) {bucket = 3 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<16xf32>) -> tensor<16xf32>
    %10 = "nova.bucket_wait"(%3) : (tensor<64xf32>) -> tensor<64xf32>
    %11 = "nova.kernel"(%arg1, %10) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %12 = "nova.bucket_wait"(%5) : (tensor<64xf32>) -> tensor<64xf32>
    %13 = "nova.kernel"(%arg2, %12) ({
    ^bb0(%arg6: tensor<64xf32>, %arg7: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %14 = "nova.bucket_wait"(%9) : (tensor<16xf32>) -> tensor<16xf32>
    %15 = "nova.kernel"(%arg3, %14) ({
    ^bb0(%arg6: tensor<16xf32>, %arg7: tensor<16xf32>):
      %16 = tensor.empty() : tensor<16xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg6, %arg7 : tensor<16xf32>, tensor<16xf32>) outs(%16 : tensor<16xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<16xf32>
      "nova.yield"(%17) : (tensor<16xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
    "nova.assign"(%arg0, %7) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg1, %11) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg2, %13) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg3, %15) : (tensor<16xf32>, tensor<16xf32>) -> ()
    return
  }
}

// ===== all are kept for a last bucket that is as large
func.func @step(%p0: tensor<64xf32> {nova.role = "state"}, %p1: tensor<64xf32> {nova.role = "state"}, %p2: tensor<64xf32> {nova.role = "state"}, %p3: tensor<64xf32> {nova.role = "state"}, %x: tensor<64xf32> {nova.role = "input"}) {
  %g0 = "nova.kernel"(%x, %p0) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g1 = "nova.kernel"(%x, %p1) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g2 = "nova.kernel"(%x, %p2) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %g3 = "nova.kernel"(%x, %p3) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %b0 = "nova.bucket_ready"(%g0) {bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w0 = "nova.bucket_wait"(%b0) : (tensor<64xf32>) -> tensor<64xf32>
  %b1 = "nova.bucket_ready"(%g1) {bucket = 1 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w1 = "nova.bucket_wait"(%b1) : (tensor<64xf32>) -> tensor<64xf32>
  %b2 = "nova.bucket_ready"(%g2) {bucket = 2 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w2 = "nova.bucket_wait"(%b2) : (tensor<64xf32>) -> tensor<64xf32>
  %b3 = "nova.bucket_ready"(%g3) {bucket = 3 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %w3 = "nova.bucket_wait"(%b3) : (tensor<64xf32>) -> tensor<64xf32>
  %u0 = "nova.kernel"(%p0, %w0) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u1 = "nova.kernel"(%p1, %w1) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u2 = "nova.kernel"(%p2, %w2) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %u3 = "nova.kernel"(%p3, %w3) ({
  ^bb0(%a0: tensor<64xf32>, %a1: tensor<64xf32>):
    %e = tensor.empty() : tensor<64xf32>
    %g = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]} ins(%a0, %a1 : tensor<64xf32>, tensor<64xf32>) outs(%e : tensor<64xf32>) {
    ^bb1(%s0: f32, %s1: f32, %o: f32):
      %m = arith.mulf %s0, %s1 : f32
      linalg.yield %m : f32
    } -> tensor<64xf32>
    "nova.yield"(%g) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  "nova.assign"(%p0, %u0) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p1, %u1) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p2, %u2) : (tensor<64xf32>, tensor<64xf32>) -> ()
  "nova.assign"(%p3, %u3) : (tensor<64xf32>, tensor<64xf32>) -> ()
  return
}
// -----
#map = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<64xf32> {nova.role = "state"}, %arg1: tensor<64xf32> {nova.role = "state"}, %arg2: tensor<64xf32> {nova.role = "state"}, %arg3: tensor<64xf32> {nova.role = "state"}, %arg4: tensor<64xf32> {nova.role = "input"}) {
    %0 = "nova.kernel"(%arg4, %arg0) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %1 = "nova.bucket_ready"(%0) {bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %2 = "nova.kernel"(%arg4, %arg1) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %3 = "nova.bucket_ready"(%2) {bucket = 1 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %4 = "nova.kernel"(%arg4, %arg2) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %5 = "nova.bucket_ready"(%4) {bucket = 2 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %6 = "nova.kernel"(%arg4, %arg3) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %7 = "nova.bucket_ready"(%6) {bucket = 3 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %8 = "nova.bucket_wait"(%1) : (tensor<64xf32>) -> tensor<64xf32>
    %9 = "nova.kernel"(%arg0, %8) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %10 = "nova.bucket_wait"(%3) : (tensor<64xf32>) -> tensor<64xf32>
    %11 = "nova.kernel"(%arg1, %10) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %12 = "nova.bucket_wait"(%5) : (tensor<64xf32>) -> tensor<64xf32>
    %13 = "nova.kernel"(%arg2, %12) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    %14 = "nova.bucket_wait"(%7) : (tensor<64xf32>) -> tensor<64xf32>
    %15 = "nova.kernel"(%arg3, %14) ({
    ^bb0(%arg5: tensor<64xf32>, %arg6: tensor<64xf32>):
      %16 = tensor.empty() : tensor<64xf32>
      %17 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]} ins(%arg5, %arg6 : tensor<64xf32>, tensor<64xf32>) outs(%16 : tensor<64xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %18 = arith.mulf %in, %in_0 : f32
        linalg.yield %18 : f32
      } -> tensor<64xf32>
      "nova.yield"(%17) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
    "nova.assign"(%arg0, %9) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg1, %11) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg2, %13) : (tensor<64xf32>, tensor<64xf32>) -> ()
    "nova.assign"(%arg3, %15) : (tensor<64xf32>, tensor<64xf32>) -> ()
    return
  }
}
