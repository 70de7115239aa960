// ===== a product with prologue, epilogue and bias gradient
func.func @step(%x: tensor<6x8xbf16> {nova.role = "input"}, %w: tensor<8x4xbf16> {nova.role = "state"}, %z: tensor<6x4xf32> {nova.role = "input"}) -> (tensor<6x4xf32>, tensor<4xf32>) {
  %0:2 = "nova.kernel"(%x, %w, %z) ({
  ^bb0(%a: tensor<6x8xbf16>, %b: tensor<8x4xbf16>, %c: tensor<6x4xf32>):
    %1 = "nova.exp"(%a) : (tensor<6x8xbf16>) -> tensor<6x8xbf16>
    %2 = "nova.matmul"(%1, %b) : (tensor<6x8xbf16>, tensor<8x4xbf16>) -> tensor<6x4xbf16>
    %3 = "nova.cast"(%2) {dtype = f32} : (tensor<6x4xbf16>) -> tensor<6x4xf32>
    %4 = "nova.mul"(%3, %c) : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
    %5 = "nova.sum"(%4) {dims = array<i64: 0>, keepdim = false} : (tensor<6x4xf32>) -> tensor<4xf32>
    "nova.yield"(%4, %5) : (tensor<6x4xf32>, tensor<4xf32>) -> ()
  }) {anchor = "contract"} : (tensor<6x8xbf16>, tensor<8x4xbf16>, tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<4xf32>)
  return %0#0, %0#1 : tensor<6x4xf32>, tensor<4xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map2 = affine_map<(d0, d1, d2) -> (d2, d1)>
#map3 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map4 = affine_map<(d0, d1) -> (d1)>
module {
  func.func @step(%arg0: tensor<6x8xbf16> {nova.role = "input"}, %arg1: tensor<8x4xbf16> {nova.role = "state"}, %arg2: tensor<6x4xf32> {nova.role = "input"}) -> (tensor<6x4xf32>, tensor<4xf32>) {
    %0:2 = "nova.kernel"(%arg0, %arg1, %arg2) ({
    ^bb0(%arg3: tensor<6x8xbf16>, %arg4: tensor<8x4xbf16>, %arg5: tensor<6x4xf32>):
      %1 = tensor.empty() : tensor<6x8xbf16>
      %2 = linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel"]} ins(%arg3 : tensor<6x8xbf16>) outs(%1 : tensor<6x8xbf16>) {
      ^bb0(%in: bf16, %out: bf16):
        %11 = arith.extf %in : bf16 to f32
        %12 = math.exp %11 : f32
        %13 = arith.truncf %12 : f32 to bf16
        linalg.yield %13 : bf16
      } -> tensor<6x8xbf16>
      %3 = tensor.empty() : tensor<6x4xf32>
      %cst = arith.constant 0.000000e+00 : f32
      %4 = linalg.fill ins(%cst : f32) outs(%3 : tensor<6x4xf32>) -> tensor<6x4xf32>
      %5 = linalg.generic {indexing_maps = [#map1, #map2, #map3], iterator_types = ["parallel", "parallel", "reduction"]} ins(%2, %arg4 : tensor<6x8xbf16>, tensor<8x4xbf16>) outs(%4 : tensor<6x4xf32>) attrs =  {nova.anchor} {
      ^bb0(%in: bf16, %in_1: bf16, %out: f32):
        %11 = arith.extf %in : bf16 to f32
        %12 = arith.extf %in_1 : bf16 to f32
        %13 = arith.mulf %11, %12 : f32
        %14 = arith.addf %out, %13 : f32
        linalg.yield %14 : f32
      } -> tensor<6x4xf32>
      %6 = tensor.empty() : tensor<6x4xf32>
      %7 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel", "parallel"]} ins(%5, %arg5 : tensor<6x4xf32>, tensor<6x4xf32>) outs(%6 : tensor<6x4xf32>) {
      ^bb0(%in: f32, %in_1: f32, %out: f32):
        %11 = arith.mulf %in, %in_1 : f32
        linalg.yield %11 : f32
      } -> tensor<6x4xf32>
      %8 = tensor.empty() : tensor<4xf32>
      %cst_0 = arith.constant 0.000000e+00 : f32
      %9 = linalg.fill ins(%cst_0 : f32) outs(%8 : tensor<4xf32>) -> tensor<4xf32>
      %10 = linalg.generic {indexing_maps = [#map, #map4], iterator_types = ["reduction", "parallel"]} ins(%7 : tensor<6x4xf32>) outs(%9 : tensor<4xf32>) {
      ^bb0(%in: f32, %out: f32):
        %11 = arith.addf %out, %in : f32
        linalg.yield %11 : f32
      } -> tensor<4xf32>
      "nova.yield"(%7, %10) : (tensor<6x4xf32>, tensor<4xf32>) -> ()
    }) {aliases = array<i64: -1, -1>, anchor = "contract"} : (tensor<6x8xbf16>, tensor<8x4xbf16>, tensor<6x4xf32>) -> (tensor<6x4xf32>, tensor<4xf32>)
    return %0#0, %0#1 : tensor<6x4xf32>, tensor<4xf32>
  }
}

// ===== movement becomes indexing maps; a reshape splits a dimension
func.func @step(%x: tensor<6x4xf32> {nova.role = "input"}, %y: tensor<2x3x5xf32> {nova.role = "input"}) -> tensor<4x2x3xf32> {
  %0 = "nova.kernel"(%x, %y) ({
  ^bb0(%a: tensor<6x4xf32>, %b: tensor<2x3x5xf32>):
    %1 = "nova.reshape"(%a) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
    %2 = "nova.slice"(%b) {sizes = array<i64: 2, 3, 1>, starts = array<i64: 0, 0, 4>, steps = array<i64: 1, 1, 1>} : (tensor<2x3x5xf32>) -> tensor<2x3x1xf32>
    %3 = "nova.flip"(%1) {dims = array<i64: 0>} : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %4 = "nova.mul"(%3, %2) : (tensor<2x3x4xf32>, tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %5 = "nova.transpose"(%4) {perm = array<i64: 2, 0, 1>} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
    "nova.yield"(%5) : (tensor<4x2x3xf32>) -> ()
  }) {anchor = "map"} : (tensor<6x4xf32>, tensor<2x3x5xf32>) -> tensor<4x2x3xf32>
  return %0 : tensor<4x2x3xf32>
}
// -----
#map = affine_map<(d0, d1, d2) -> (-d1 + 1, d2, d0)>
#map1 = affine_map<(d0, d1, d2) -> (d1, d2, 4)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
module {
  func.func @step(%arg0: tensor<6x4xf32> {nova.role = "input"}, %arg1: tensor<2x3x5xf32> {nova.role = "input"}) -> tensor<4x2x3xf32> {
    %0 = "nova.reshape"(%arg0) {shape = array<i64: 2, 3, 4>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
    %1 = "nova.kernel"(%0, %arg1) ({
    ^bb0(%arg2: tensor<2x3x4xf32>, %arg3: tensor<2x3x5xf32>):
      %2 = tensor.empty() : tensor<4x2x3xf32>
      %3 = linalg.generic {indexing_maps = [#map, #map1, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%arg2, %arg3 : tensor<2x3x4xf32>, tensor<2x3x5xf32>) outs(%2 : tensor<4x2x3xf32>) {
      ^bb0(%in: f32, %in_0: f32, %out: f32):
        %4 = arith.mulf %in, %in_0 : f32
        linalg.yield %4 : f32
      } -> tensor<4x2x3xf32>
      "nova.yield"(%3) : (tensor<4x2x3xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<2x3x4xf32>, tensor<2x3x5xf32>) -> tensor<4x2x3xf32>
    return %1 : tensor<4x2x3xf32>
  }
}

// ===== a row kernel: what several read is an operation of its own
func.func @step(%x: tensor<6x8xf32> {nova.role = "input"}) -> tensor<6x8xf32> {
  %0 = "nova.kernel"(%x) ({
  ^bb0(%a: tensor<6x8xf32>):
    %1 = "nova.mean"(%a) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
    %2 = "nova.sub"(%a, %1) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
    %3 = "nova.mul"(%2, %2) : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
    %4 = "nova.sum"(%3) {dims = array<i64: 1>, keepdim = true} : (tensor<6x8xf32>) -> tensor<6x1xf32>
    %5 = "nova.sqrt"(%4) : (tensor<6x1xf32>) -> tensor<6x1xf32>
    %6 = "nova.div"(%2, %5) : (tensor<6x8xf32>, tensor<6x1xf32>) -> tensor<6x8xf32>
    "nova.yield"(%6) : (tensor<6x8xf32>) -> ()
  }) {anchor = "row"} : (tensor<6x8xf32>) -> tensor<6x8xf32>
  return %0 : tensor<6x8xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0, d1) -> (d0)>
#map2 = affine_map<(d0) -> (d0)>
module {
  func.func @step(%arg0: tensor<6x8xf32> {nova.role = "input"}) -> tensor<6x8xf32> {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg1: tensor<6x8xf32>):
      %1 = tensor.empty() : tensor<6xf32>
      %cst = arith.constant 0.000000e+00 : f32
      %2 = linalg.fill ins(%cst : f32) outs(%1 : tensor<6xf32>) -> tensor<6xf32>
      %3 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "reduction"]} ins(%arg1 : tensor<6x8xf32>) outs(%2 : tensor<6xf32>) {
      ^bb0(%in: f32, %out: f32):
        %15 = arith.addf %out, %in : f32
        linalg.yield %15 : f32
      } -> tensor<6xf32>
      %4 = tensor.empty() : tensor<6xf32>
      %5 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel"]} ins(%3 : tensor<6xf32>) outs(%4 : tensor<6xf32>) {
      ^bb0(%in: f32, %out: f32):
        %cst_1 = arith.constant 8.000000e+00 : f32
        %15 = arith.divf %in, %cst_1 : f32
        linalg.yield %15 : f32
      } -> tensor<6xf32>
      %6 = tensor.empty() : tensor<6x8xf32>
      %7 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%arg1, %5 : tensor<6x8xf32>, tensor<6xf32>) outs(%6 : tensor<6x8xf32>) {
      ^bb0(%in: f32, %in_1: f32, %out: f32):
        %15 = arith.subf %in, %in_1 : f32
        linalg.yield %15 : f32
      } -> tensor<6x8xf32>
      %8 = tensor.empty() : tensor<6xf32>
      %cst_0 = arith.constant 0.000000e+00 : f32
      %9 = linalg.fill ins(%cst_0 : f32) outs(%8 : tensor<6xf32>) -> tensor<6xf32>
      %10 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "reduction"]} ins(%7 : tensor<6x8xf32>) outs(%9 : tensor<6xf32>) {
      ^bb0(%in: f32, %out: f32):
        %15 = arith.mulf %in, %in : f32
        %16 = arith.addf %out, %15 : f32
        linalg.yield %16 : f32
      } -> tensor<6xf32>
      %11 = tensor.empty() : tensor<6xf32>
      %12 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel"]} ins(%10 : tensor<6xf32>) outs(%11 : tensor<6xf32>) {
      ^bb0(%in: f32, %out: f32):
        %15 = math.sqrt %in : f32
        linalg.yield %15 : f32
      } -> tensor<6xf32>
      %13 = tensor.empty() : tensor<6x8xf32>
      %14 = linalg.generic {indexing_maps = [#map, #map1, #map], iterator_types = ["parallel", "parallel"]} ins(%7, %12 : tensor<6x8xf32>, tensor<6xf32>) outs(%13 : tensor<6x8xf32>) {
      ^bb0(%in: f32, %in_1: f32, %out: f32):
        %15 = arith.divf %in, %in_1 : f32
        linalg.yield %15 : f32
      } -> tensor<6x8xf32>
      "nova.yield"(%14) : (tensor<6x8xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<6x8xf32>) -> tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}

// ===== concat reads at computed places
func.func @step(%x: tensor<2x3xf32> {nova.role = "input"}, %y: tensor<2x1xf32> {nova.role = "input"}) -> tensor<2x4xf32> {
  %0 = "nova.kernel"(%x, %y) ({
  ^bb0(%a: tensor<2x3xf32>, %b: tensor<2x1xf32>):
    %1 = "nova.concat"(%a, %b) {dim = 1 : i64} : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
    "nova.yield"(%1) : (tensor<2x4xf32>) -> ()
  }) {anchor = "map"} : (tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
// -----
#map = affine_map<(d0, d1) -> (d0, d1)>
module {
  func.func @step(%arg0: tensor<2x3xf32> {nova.role = "input"}, %arg1: tensor<2x1xf32> {nova.role = "input"}) -> tensor<2x4xf32> {
    %0 = "nova.reshape"(%arg1) {shape = array<i64: 2>} : (tensor<2x1xf32>) -> tensor<2xf32>
    %1 = "nova.kernel"(%arg0, %0) ({
    ^bb0(%arg2: tensor<2x3xf32>, %arg3: tensor<2xf32>):
      %2 = tensor.empty() : tensor<2x4xf32>
      %3 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel", "parallel"]} outs(%2 : tensor<2x4xf32>) {
      ^bb0(%out: f32):
        %c0_i64 = arith.constant 0 : i64
        %4 = linalg.index 0 : index
        %5 = arith.index_cast %4 : index to i64
        %6 = linalg.index 1 : index
        %7 = arith.index_cast %6 : index to i64
        %8 = arith.subi %7, %c0_i64 : i64
        %9 = arith.maxsi %8, %c0_i64 : i64
        %c2_i64 = arith.constant 2 : i64
        %10 = arith.minsi %9, %c2_i64 : i64
        %11 = arith.index_cast %5 : i64 to index
        %12 = arith.index_cast %10 : i64 to index
        %extracted = tensor.extract %arg2[%11, %12] : tensor<2x3xf32>
        %13 = arith.cmpi sge, %7, %c0_i64 : i64
        %c3_i64 = arith.constant 3 : i64
        %14 = arith.subi %7, %c3_i64 : i64
        %15 = arith.maxsi %14, %c0_i64 : i64
        %16 = arith.minsi %15, %c0_i64 : i64
        %extracted_0 = tensor.extract %arg3[%11] : tensor<2xf32>
        %17 = arith.cmpi sge, %7, %c3_i64 : i64
        %18 = arith.select %17, %extracted_0, %extracted : f32
        linalg.yield %18 : f32
      } -> tensor<2x4xf32>
      "nova.yield"(%3) : (tensor<2x4xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }
}

// ===== a step without kernels
func.func @step(%p: tensor<4xf32> {nova.role = "state"}) {
  return
}
// ----- unchanged

// ===== an expression that a dtype has not
func.func @step(%x: tensor<4xf32> {nova.role = "input"}) -> tensor<4xf32> {
  %0 = "nova.kernel"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %1 = "nova.bitwise_and"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    "nova.yield"(%1) : (tensor<4xf32>) -> ()
  }) {anchor = "map"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// ----- refused: bitwise_and cannot be compiled: no expression for float32
