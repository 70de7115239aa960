// ===== what starts while a collective runs knows what that holds
func.func @step(%g: tensor<64xf32>, %h: tensor<4096x2048xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>) {
  %a = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %b = "nova.bucket_ready"(%a) {blocks = 16 : i64, bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %c = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %d = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>) -> tensor<64xf32>
  %e = "nova.kernel"(%h) ({
  ^bb0(%x: tensor<4096x2048xf32>):
    "nova.yield"(%x) : (tensor<4096x2048xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "column"} : (tensor<4096x2048xf32>) -> tensor<4096x2048xf32>
  %f = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %w = "nova.bucket_wait"(%b) : (tensor<64xf32>) -> tensor<64xf32>
  return %w, %c, %d, %e, %f : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>
}
// -----
module {
  func.func @step(%arg0: tensor<64xf32>, %arg1: tensor<4096x2048xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>) {
    %0 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<64xf32>):
      "nova.yield"(%arg2) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
    %1 = "nova.bucket_ready"(%0) {blocks = 16 : i64, bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %2 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<64xf32>):
      "nova.yield"(%arg2) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "row", reserved = 16 : i64} : (tensor<64xf32>) -> tensor<64xf32>
    %3 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<64xf32>):
      "nova.yield"(%arg2) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>) -> tensor<64xf32>
    %4 = "nova.kernel"(%arg1) ({
    ^bb0(%arg2: tensor<4096x2048xf32>):
      "nova.yield"(%arg2) : (tensor<4096x2048xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "column", reserved = 16 : i64} : (tensor<4096x2048xf32>) -> tensor<4096x2048xf32>
    %5 = "nova.kernel"(%arg0) ({
    ^bb0(%arg2: tensor<64xf32>):
      "nova.yield"(%arg2) : (tensor<64xf32>) -> ()
    }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
    %6 = "nova.bucket_wait"(%1) : (tensor<64xf32>) -> tensor<64xf32>
    return %6, %2, %3, %4, %5 : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>
  }
}

// ===== a collective that is elsewhere holds nothing
func.func @step(%g: tensor<64xf32>, %h: tensor<4096x2048xf32>) -> (tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>) {
  %a = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %b = "nova.bucket_ready"(%a) {blocks = 0 : i64, bucket = 0 : i64, offsets = array<i64: 0>, primitive = "reduce_bucket", reducer = 0 : i64} : (tensor<64xf32>) -> tensor<64xf32>
  %c = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %d = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "map"} : (tensor<64xf32>) -> tensor<64xf32>
  %e = "nova.kernel"(%h) ({
  ^bb0(%x: tensor<4096x2048xf32>):
    "nova.yield"(%x) : (tensor<4096x2048xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "column"} : (tensor<4096x2048xf32>) -> tensor<4096x2048xf32>
  %f = "nova.kernel"(%g) ({
  ^bb0(%x: tensor<64xf32>):
    "nova.yield"(%x) : (tensor<64xf32>) -> ()
  }) {aliases = array<i64: -1>, anchor = "row"} : (tensor<64xf32>) -> tensor<64xf32>
  %w = "nova.bucket_wait"(%b) : (tensor<64xf32>) -> tensor<64xf32>
  return %w, %c, %d, %e, %f : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<4096x2048xf32>, tensor<64xf32>
}
// ----- unchanged
