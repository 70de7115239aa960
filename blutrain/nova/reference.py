"""A slow, independent evaluator of kernels in linalg, in NumPy: NOVA_CHECK and the tests compare generated code with it."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
from mlir import ir

from ..tensor.ops.philox import philox_blocks
from .kernel_reader import read_index, tensor_type

DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "i1": np.bool_,
    "index": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
}
_ERF = np.vectorize(math.erf, otypes=[np.float64])
_BINARY = {
    "addf": np.add, "addi": np.add, "subf": np.subtract, "subi": np.subtract, "mulf": np.multiply, "muli": np.multiply,
    "divf": np.divide, "divsi": lambda a, b: _quotient(a, b), "floordivsi": np.floor_divide,
    "divui": lambda a, b: _unsigned(a) // _unsigned(b), "remui": lambda a, b: _unsigned(a) % _unsigned(b),
    "remsi": np.fmod, "remf": np.fmod, "powf": np.power, "ipowi": np.power, "atan2": np.arctan2,
    "maximumf": np.maximum, "minimumf": np.minimum, "maxsi": np.maximum, "minsi": np.minimum,
    "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor, "shli": np.left_shift,
    "shrsi": np.right_shift, "copysign": np.copysign,
}  # fmt: skip
_UNARY = {
    "negf": np.negative, "absf": np.abs, "absi": np.abs, "sqrt": np.sqrt, "exp": np.exp, "expm1": np.expm1,
    "log": np.log, "log1p": np.log1p, "log2": np.log2, "sin": np.sin, "cos": np.cos, "tan": np.tan, "atan": np.arctan,
    "tanh": np.tanh, "erf": lambda x: _ERF(x).astype(np.asarray(x).dtype), "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "roundeven": np.rint,
}  # fmt: skip
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "oeq": np.equal, "une": np.not_equal,
    "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal,
    "olt": np.less, "ole": np.less_equal, "ogt": np.greater, "oge": np.greater_equal,
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
    "ult": lambda a, b: _unsigned(a) < _unsigned(b), "ule": lambda a, b: _unsigned(a) <= _unsigned(b),
    "ugt": lambda a, b: _unsigned(a) > _unsigned(b), "uge": lambda a, b: _unsigned(a) >= _unsigned(b),
}  # fmt: skip
_PREDICATES = {
    "arith.cmpi": ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"],
    "arith.cmpf": [
        "false",
        "oeq",
        "ogt",
        "oge",
        "olt",
        "ole",
        "one",
        "ord",
        "ueq",
        "ugt",
        "uge",
        "ult",
        "ule",
        "une",
        "uno",
        "true",
    ],
}


def _unsigned(x: np.ndarray) -> np.ndarray:
    """The same bits as an unsigned integer."""
    x = np.asarray(x)
    return x if x.dtype == np.bool_ else x.astype(f"u{x.dtype.itemsize}")


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero; NumPy's is towards minus infinity."""
    floor = np.floor_divide(a, b)
    return floor + ((floor < 0) & (floor * b != a))


def dtype_of(type_: ir.Type) -> np.dtype:
    return np.dtype(DTYPES[str(type_)])


def run_kernel(op: ir.Operation, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a kernel on arrays of its operands' shapes inside."""
    (block,) = op.regions[0].blocks
    values: dict[ir.Value, np.ndarray] = dict(zip(block.arguments, arrays, strict=True))
    for inner in block.operations:
        inner = inner.operation
        operands = [values[v] for v in inner.operands]
        if inner.name == "nova.yield":
            return [np.array(x) for x in operands]
        values.update(zip(inner.results, _evaluate(inner, operands, values), strict=True))
    raise AssertionError("a kernel without a yield")


def _evaluate(op: ir.Operation, operands: list[np.ndarray], values) -> list[np.ndarray]:
    if op.name == "tensor.empty":
        type_ = tensor_type(op.results[0].type)
        garbage = np.full(type_.shape, 77, DTYPES[type_.dtype])
        return [garbage]
    if op.name == "arith.constant":
        return [_constant(op)]
    if op.name == "linalg.fill":
        return [np.full(operands[1].shape, operands[0], operands[1].dtype)]
    if op.name == "linalg.generic":
        return _generic(op, operands, values)
    if op.name == "tensor.extract_slice":
        sizes = tuple(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
        assert set(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])) <= {0}
        return [operands[0][tuple(slice(0, n) for n in sizes)]]
    if op.name == "nova.gather":
        table, ids = operands
        return [table[np.clip(ids, 0, len(table) - 1)]]
    if op.name == "nova.scatter_add":
        return [_scatter_add(op, operands)]
    if op.name == "nova.cumsum":
        wide = np.float32 if operands[0].dtype.itemsize == 2 else operands[0].dtype
        return [np.cumsum(operands[0], axis=1, dtype=wide).astype(operands[0].dtype)]
    raise AssertionError(f"{op.name} in a kernel")


def _scatter_add(op: ir.Operation, operands: list[np.ndarray]) -> np.ndarray:
    ids, updates, *init = operands
    type_ = tensor_type(op.results[0].type)
    table = np.array(init[0]) if init else np.zeros(type_.shape, DTYPES[type_.dtype])
    ids, rows = ids.reshape(-1), updates.reshape(-1, updates.shape[-1])
    inside = (ids >= 0) & (ids < len(table))
    np.add.at(table, ids[inside], rows[inside])
    return table


def _constant(op: ir.Operation) -> np.ndarray:
    dtype = dtype_of(op.results[0].type)
    return np.array(op.attributes["value"].value).astype(dtype)


def _generic(op: ir.Operation, operands: list[np.ndarray], values) -> list[np.ndarray]:
    """Vectorised over the parallel loops, one reduced point after the other."""
    maps = [[read_index(e) for e in ir.AffineMapAttr(a).value.results] for a in op.attributes["indexing_maps"]]
    kinds = ["reduction" in str(a) for a in op.attributes["iterator_types"]]
    extents = [0] * len(kinds)
    for operand, indices in zip(operands, maps, strict=True):
        for size, index in zip(operand.shape, indices, strict=True):
            if index.dim is not None and (index.coefficient, index.offset) == (1, 0):
                extents[index.dim] = size
    num_outputs = len(op.results)
    parallel = [d for d, reduced in enumerate(kinds) if not reduced]
    reduced = [d for d, is_reduced in enumerate(kinds) if is_reduced]
    grid = np.indices([extents[d] for d in parallel], sparse=True) if parallel else []
    loops: list = [None] * len(kinds)
    for d, along in zip(parallel, grid, strict=True):
        loops[d] = along
    shape = tuple(extents[d] for d in parallel)
    outputs = [
        np.array(np.broadcast_to(_at(x, m, loops), shape))
        for x, m in zip(operands[-num_outputs:], maps[-num_outputs:], strict=True)
    ]
    block = op.regions[0].blocks[0]
    for point in itertools.product(*(range(extents[d]) for d in reduced)):
        for d, place in zip(reduced, point, strict=True):
            loops[d] = place
        inputs = [_at(x, m, loops) for x, m in zip(operands[:-num_outputs], maps[:-num_outputs], strict=True)]
        outputs = [
            np.broadcast_to(x, shape).astype(o.dtype)
            for x, o in zip(_region(block, [*inputs, *outputs], loops, values), outputs, strict=True)
        ]
    return [
        _stored(x, m, o, loops) for x, m, o in zip(outputs, maps[-num_outputs:], operands[-num_outputs:], strict=True)
    ]


def _at(array: np.ndarray, indices, loops) -> np.ndarray:
    """The elements that a map reads; an index out of bounds is a fault of the pass."""
    places = []
    for size, index in zip(array.shape, indices, strict=True):
        place = index.offset if index.dim is None else index.coefficient * loops[index.dim] + index.offset
        assert np.size(place) == 0 or (np.min(place) >= 0 and np.max(place) < size), "out of bounds"
        places.append(place)
    return array[tuple(places)] if places else array


def _stored(value: np.ndarray, indices, like: np.ndarray, loops) -> np.ndarray:
    result = np.array(like)
    result[tuple(loops[i.dim] for i in indices)] = value
    return result


def _region(block: ir.Block, arguments: list, loops, outer) -> list:
    names: dict[ir.Value, np.ndarray] = dict(zip(block.arguments, arguments, strict=True))
    with np.errstate(all="ignore"):
        for op in block.operations:
            op = op.operation
            operands = [names[v] if v in names else outer[v] for v in op.operands]
            if op.name == "linalg.yield":
                return operands
            names[op.results[0]] = _scalar(op, operands, loops)
    raise AssertionError("a region without a yield")


def _scalar(op: ir.Operation, operands: list, loops):
    dialect, name = op.name.split(".")
    result = dtype_of(op.results[0].type)
    if op.name == "arith.constant":
        return _constant(op)
    if op.name == "linalg.index":
        return np.asarray(loops[ir.IntegerAttr(op.attributes["dim"]).value])
    if op.name in _PREDICATES:
        predicate = _PREDICATES[op.name][ir.IntegerAttr(op.attributes["predicate"]).value]
        return _COMPARE[predicate](*operands)
    if op.name == "arith.select":
        return np.where(*operands)
    if op.name == "tensor.extract":
        return operands[0][tuple(operands[1:])]
    if op.name == "nova.random_bits":
        return _random_bits(*operands)
    if name in ("extui", "uitofp"):
        return _unsigned(operands[0]).astype(result)
    if name in ("extf", "truncf", "extsi", "trunci", "sitofp", "fptosi", "index_cast"):
        return np.asarray(operands[0]).astype(result)
    assert dialect in ("arith", "math"), op.name
    return np.asarray((_BINARY.get(name) or _UNARY[name])(*operands)).astype(result)


def _random_bits(seed, draw, index):
    count = int(np.max(index)) + 1
    words = np.empty(count, np.uint32)
    seed, draw = (int(np.ravel(x)[0]) & 0xFFFFFFFFFFFFFFFF for x in (seed, draw))
    for start, some in philox_blocks(seed, draw, count):
        words[start : start + some.size] = some
    return words.view(np.int32)[index]
