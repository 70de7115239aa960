"""The operations: one file per family, each record of the table beside the function that users call.

Reading order: pointwise (what elementwise records share), arithmetic, compare, unary, cast; reduce, extremum,
statistics; movement, arrange; contract, einsum; gather, scatter, sort, search, distinct; create, random; effect,
transfer; composite; sampling. Importing this package fills `primitive.TABLE`.
"""

from . import (  # noqa: F401
    arithmetic,
    arrange,
    cast,
    compare,
    composite,
    contract,
    create,
    diagonal,
    distinct,
    effect,
    einsum,
    extremum,
    formulas,
    gather,
    movement,
    pointwise,
    random,
    reduce,
    sampling,
    scatter,
    search,
    sort,
    statistics,
    transfer,
    unary,
)
