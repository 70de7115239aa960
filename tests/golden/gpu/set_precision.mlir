// ===== tf32 on products of f32, nothing on those of bf16
module attributes {nova.precision = "tf32"} {
func.func @step(%x: tensor<4x8xf32>, %w: tensor<2x8xf32>, %y: tensor<4x8xbf16>, %v: tensor<2x8xbf16>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
  %0 = "nova.kernel"(%x, %w) ({
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<2x8xf32>):
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x2xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x2xf32>) -> tensor<4x2xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<4x8xf32>, tensor<2x8xf32>) outs(%f : tensor<4x2xf32>) attrs = {nova.anchor} {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %m = arith.mulf %p, %q : f32
      %s = arith.addf %o, %m : f32
      linalg.yield %s : f32
    } -> tensor<4x2xf32>
    "nova.yield"(%r) : (tensor<4x2xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "contract"} : (tensor<4x8xf32>, tensor<2x8xf32>) -> tensor<4x2xf32>
  %1 = "nova.kernel"(%y, %v) ({
  ^bb0(%a: tensor<4x8xbf16>, %b: tensor<2x8xbf16>):
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x2xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x2xf32>) -> tensor<4x2xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%a, %b : tensor<4x8xbf16>, tensor<2x8xbf16>) outs(%f : tensor<4x2xf32>) attrs = {nova.anchor} {
    ^bb0(%p: bf16, %q: bf16, %o: f32):
      %x0 = arith.extf %p : bf16 to f32
      %x1 = arith.extf %q : bf16 to f32
      %m = arith.mulf %x0, %x1 : f32
      %s = arith.addf %o, %m : f32
      linalg.yield %s : f32
    } -> tensor<4x2xf32>
    "nova.yield"(%r) : (tensor<4x2xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "contract"} : (tensor<4x8xbf16>, tensor<2x8xbf16>) -> tensor<4x2xf32>
  return %0, %1 : tensor<4x2xf32>, tensor<4x2xf32>
}
}
// -----
#map = affine_map<(d0, d1, d2) -> (d0, d2)>
#map1 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1)>
module attributes {nova.precision = "tf32"} {
  func.func @step(%arg0: tensor<4x8xf32>, %arg1: tensor<2x8xf32>, %arg2: tensor<4x8xbf16>, %arg3: tensor<2x8xbf16>) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
    %0 = "nova.kernel"(%arg0, %arg1) ({
    ^bb0(%arg4: tensor<4x8xf32>, %arg5: tensor<2x8xf32>):
      %cst = arith.constant 0.000000e+00 : f32
      %2 = tensor.empty() : tensor<4x2xf32>
      %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<4x2xf32>) -> tensor<4x2xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg4, %arg5 : tensor<4x8xf32>, tensor<2x8xf32>) outs(%3 : tensor<4x2xf32>) attrs =  {nova.anchor, precision = "tf32"} {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %5 = arith.mulf %in, %in_0 : f32
        %6 = arith.addf %out, %5 : f32
        linalg.yield %6 : f32
      } -> tensor<4x2xf32>
      "nova.yield"(%4) : (tensor<4x2xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "contract"} : (tensor<4x8xf32>, tensor<2x8xf32>) -> tensor<4x2xf32>
    %1 = "nova.kernel"(%arg2, %arg3) ({
    ^bb0(%arg4: tensor<4x8xbf16>, %arg5: tensor<2x8xbf16>):
      %cst = arith.constant 0.000000e+00 : f32
      %2 = tensor.empty() : tensor<4x2xf32>
      %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<4x2xf32>) -> tensor<4x2xf32>
      %4 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg4, %arg5 : tensor<4x8xbf16>, tensor<2x8xbf16>) outs(%3 : tensor<4x2xf32>) attrs =  {nova.anchor} {
      ^bb0(%in: bf16, %in_0: bf16, %out: f32):
        %5 = arith.extf %in : bf16 to f32
        %6 = arith.extf %in_0 : bf16 to f32
        %7 = arith.mulf %5, %6 : f32
        %8 = arith.addf %out, %7 : f32
        linalg.yield %8 : f32
      } -> tensor<4x2xf32>
      "nova.yield"(%4) : (tensor<4x2xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "contract"} : (tensor<4x8xbf16>, tensor<2x8xbf16>) -> tensor<4x2xf32>
    return %0, %1 : tensor<4x2xf32>, tensor<4x2xf32>
  }
}
