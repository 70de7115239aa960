"""Layer norm, softmax and cross-entropy as bodies of row kernels, written the way the lowering writes them."""

from __future__ import annotations

from cpu_kernels import Body, Value, in_dtype, region

from blutrain.nova.emitter import float_literal


def sum_of(body: Body, x: Value, rows: int, cols: int, dtype: str) -> Value:
    text = region(in_dtype("%s = arith.addf %i0, %o0 : T", dtype), f"%s : {dtype}")
    return body.reduce([(x, "d0, d1")], (rows,), "d0", "pr", text, dtype=dtype)


def op(dtype: str, *lines: str) -> str:
    return region(*[in_dtype(line, dtype) for line in lines])


def layer_norm(rows: int, cols: int, dtype: str = "f32") -> Body:
    """y, mean, rstd of x under weight and bias."""
    b = Body("row")
    x, w, bias = b.operand(rows, cols, dtype=dtype), b.operand(cols, dtype=dtype), b.operand(cols, dtype=dtype)
    scale = op(dtype, f"%c = arith.constant {float_literal(1 / cols)} : T", "%r = arith.mulf %i0, %c : T", "%r : T")
    mean = b.map([(sum_of(b, x, rows, cols, dtype), "d0")], (rows,), scale, dtype)
    center = op(dtype, "%r = arith.subf %i0, %i1 : T", "%r : T")
    xc = b.map([(x, "d0, d1"), (mean, "d0")], (rows, cols), center, dtype)
    square = op(dtype, "%q = arith.mulf %i0, %i0 : T", "%s = arith.addf %q, %o0 : T", "%s : T")
    total = b.reduce([(xc, "d0, d1")], (rows,), "d0", "pr", square, dtype=dtype)
    inverse = op(
        dtype,
        f"%c = arith.constant {float_literal(1 / cols)} : T",
        "%e = arith.constant 1.0e-05 : T",
        "%v = arith.mulf %i0, %c : T",
        "%p = arith.addf %v, %e : T",
        "%r = math.rsqrt %p : T",
        "%r : T",
    )
    rstd = b.map([(total, "d0")], (rows,), inverse, dtype)
    normalise = op(
        dtype,
        "%n = arith.mulf %i0, %i1 : T",
        "%s = arith.mulf %n, %i2 : T",
        "%r = arith.addf %s, %i3 : T",
        "%r : T",
    )
    y = b.map([(xc, "d0, d1"), (rstd, "d0"), (w, "d1"), (bias, "d1")], (rows, cols), normalise, dtype)
    for value in (y, mean, rstd):
        b.result(value)
    return b


def layer_norm_backward(rows: int, cols: int, dtype: str = "f32") -> Body:
    """dx, dweight, dbias from dy, x, weight, mean, rstd."""
    b = Body("row")
    dy, x = b.operand(rows, cols, dtype=dtype), b.operand(rows, cols, dtype=dtype)
    w, mean, rstd = b.operand(cols, dtype=dtype), b.operand(rows, dtype=dtype), b.operand(rows, dtype=dtype)
    normal = op(dtype, "%c = arith.subf %i0, %i1 : T", "%r = arith.mulf %c, %i2 : T", "%r : T")
    xh = b.map([(x, "d0, d1"), (mean, "d0"), (rstd, "d0")], (rows, cols), normal, dtype)
    product = op(dtype, "%r = arith.mulf %i0, %i1 : T", "%r : T")
    gw = b.map([(dy, "d0, d1"), (w, "d1")], (rows, cols), product, dtype)
    s1 = sum_of(b, gw, rows, cols, dtype)
    dot = op(dtype, "%q = arith.mulf %i0, %i1 : T", "%s = arith.addf %q, %o0 : T", "%s : T")
    s2 = b.reduce([(gw, "d0, d1"), (xh, "d0, d1")], (rows,), "d0", "pr", dot, dtype=dtype)
    final = op(
        dtype,
        f"%c = arith.constant {float_literal(1 / cols)} : T",
        "%a = arith.mulf %i2, %c : T",
        "%d = arith.mulf %i3, %c : T",
        "%u = arith.subf %i0, %a : T",
        "%v = arith.mulf %i1, %d : T",
        "%t = arith.subf %u, %v : T",
        "%r = arith.mulf %t, %i4 : T",
        "%r : T",
    )
    parts = [(gw, "d0, d1"), (xh, "d0, d1"), (s1, "d0"), (s2, "d0"), (rstd, "d0")]
    dx = b.map(parts, (rows, cols), final, dtype)
    dw = b.reduce([(dy, "d0, d1"), (xh, "d0, d1")], (cols,), "d1", "rp", dot, dtype=dtype)
    plain = op(dtype, "%s = arith.addf %i0, %o0 : T", "%s : T")
    db = b.reduce([(dy, "d0, d1")], (cols,), "d1", "rp", plain, dtype=dtype)
    for value in (dx, dw, db):
        b.result(value)
    return b


INFINITY = {"f32": "0xFF800000", "f64": "0xFFF0000000000000"}


def row_max(b: Body, x: Value, rows: int, cols: int, dtype: str) -> Value:
    text = op(dtype, "%r = arith.maximumf %i0, %o0 : T", "%r : T")
    return b.reduce([(x, "d0, d1")], (rows,), "d0", "pr", text, neutral=INFINITY[dtype], dtype=dtype)


def softmax(rows: int, cols: int, dtype: str = "f32", log: bool = False) -> Body:
    b = Body("row")
    x = b.operand(rows, cols, dtype=dtype)
    m = row_max(b, x, rows, cols, dtype)
    shifted = op(dtype, "%r = arith.subf %i0, %i1 : T", "%r : T")
    s = b.map([(x, "d0, d1"), (m, "d0")], (rows, cols), shifted, dtype)
    e = b.map([(s, "d0, d1")], (rows, cols), op(dtype, "%r = math.exp %i0 : T", "%r : T"), dtype)
    z = sum_of(b, e, rows, cols, dtype)
    if log:
        lz = b.map([(z, "d0")], (rows,), op(dtype, "%r = math.log %i0 : T", "%r : T"), dtype)
        y = b.map([(s, "d0, d1"), (lz, "d0")], (rows, cols), shifted, dtype)
    else:
        y = b.map([(e, "d0, d1"), (z, "d0")], (rows, cols), op(dtype, "%r = arith.divf %i0, %i1 : T", "%r : T"), dtype)
    b.result(y)
    return b


def cross_entropy(
    rows: int, cols: int, dtype: str = "f32", smoothing: float = 0.0, ignore_index: int = -100, ids: str = "i64"
) -> Body:
    """Mean loss and the gradient of the summed loss with respect to the logits.

    Rows whose target is ignore_index count nowhere. With smoothing s the target distribution is 1-s at the target plus
    s/cols everywhere. Results: mean loss (0-d), kept rows (0-d), lse (rows), dlogits (rows, cols).
    """
    b = Body("row")
    x, t = b.operand(rows, cols, dtype=dtype), b.operand(rows, dtype=ids)
    m = row_max(b, x, rows, cols, dtype)
    e = b.map(
        [(x, "d0, d1"), (m, "d0")],
        (rows, cols),
        op(dtype, "%s = arith.subf %i0, %i1 : T", "%r = math.exp %s : T", "%r : T"),
        dtype,
    )
    z = sum_of(b, e, rows, cols, dtype)
    lse = b.map(
        [(z, "d0"), (m, "d0")],
        (rows,),
        op(dtype, "%l = math.log %i0 : T", "%r = arith.addf %l, %i1 : T", "%r : T"),
        dtype,
    )
    is_target = (
        "%k = linalg.index 1 : index",
        f"%ki = arith.index_cast %k : index to {ids}",
        f"%h = arith.cmpi eq, %ki, %i1 : {ids}",
        "%zero = arith.constant 0.0 : T",
    )
    pick = op(dtype, *is_target, "%v = arith.select %h, %i0, %zero : T", "%s = arith.addf %v, %o0 : T", "%s : T")
    xt = b.reduce([(x, "d0, d1"), (t, "d0")], (rows,), "d0", "pr", pick, dtype=dtype)
    sx = sum_of(b, x, rows, cols, dtype)
    keep = (f"%ig = arith.constant {ignore_index} : {ids}", f"%kp = arith.cmpi ne, %i0, %ig : {ids}")
    loss = b.map(
        [(t, "d0"), (lse, "d0"), (xt, "d0"), (sx, "d0")],
        (rows,),
        op(
            dtype,
            *keep,
            f"%a = arith.constant {float_literal(1 - smoothing)} : T",
            f"%c = arith.constant {float_literal(smoothing / max(cols, 1))} : T",
            "%zero = arith.constant 0.0 : T",
            "%u = arith.mulf %i2, %a : T",
            "%w = arith.mulf %i3, %c : T",
            "%p = arith.subf %i1, %u : T",
            "%q = arith.subf %p, %w : T",
            "%r = arith.select %kp, %q, %zero : T",
            "%r : T",
        ),
        dtype,
    )
    plain = op(dtype, "%s = arith.addf %i0, %o0 : T", "%s : T")
    total = b.reduce([(loss, "d0")], (), "", "r", plain, dtype=dtype)
    one = op(
        dtype,
        *keep,
        "%one = arith.constant 1.0 : T",
        "%zero = arith.constant 0.0 : T",
        "%v = arith.select %kp, %one, %zero : T",
        "%s = arith.addf %v, %o0 : T",
        "%s : T",
    )
    count = b.reduce([(t, "d0")], (), "", "r", one, dtype=dtype)
    mean = b.map([(total, ""), (count, "")], (), op(dtype, "%r = arith.divf %i0, %i1 : T", "%r : T"), dtype)
    grad = op(
        dtype,
        *is_target,
        f"%ig = arith.constant {ignore_index} : {ids}",
        f"%kp = arith.cmpi ne, %i1, %ig : {ids}",
        f"%a = arith.constant {float_literal(1 - smoothing)} : T",
        f"%c = arith.constant {float_literal(smoothing / max(cols, 1))} : T",
        "%p = arith.divf %i0, %i2 : T",
        "%y = arith.select %h, %a, %zero : T",
        "%q = arith.subf %p, %y : T",
        "%d = arith.subf %q, %c : T",
        "%r = arith.select %kp, %d, %zero : T",
        "%r : T",
    )
    dx = b.map([(e, "d0, d1"), (t, "d0"), (z, "d0")], (rows, cols), grad, dtype)
    for value in (mean, count, lse, dx):
        b.result(value)
    return b


def gathered(table_rows: int, rows: int, cols: int, dtype: str = "f32") -> Body:
    """Rows of a table by number, their products with x summed along the row, and both multiplied."""
    b = Body("row")
    table, ids = b.operand(table_rows, cols, dtype=dtype), b.operand(rows, dtype="i64")
    x = b.operand(rows, cols, dtype=dtype)
    found = b.op("nova.gather", [table, ids], (rows, cols), dtype)
    product = op(dtype, "%q = arith.mulf %i0, %i1 : T", "%s = arith.addf %q, %o0 : T", "%s : T")
    total = b.reduce([(found, "d0, d1"), (x, "d0, d1")], (rows,), "d0", "pr", product, dtype=dtype)
    scaled = b.map(
        [(found, "d0, d1"), (total, "d0")], (rows, cols), op(dtype, "%r = arith.mulf %i0, %i1 : T", "%r : T"), dtype
    )
    for value in (found, total, scaled):
        b.result(value)
    return b
