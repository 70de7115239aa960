"""The operations: one file per family, each record of the table beside the function that users call.

Reading order: pointwise (what elementwise records share), arithmetic, compare, unary, cast; reduce, extremum,
statistics; movement, arrange; contract, einsum; gather, sort; create, random; effect, transfer; composite. Importing
this package fills `primitive.TABLE`.
"""

from . import (  # noqa: F401
    arithmetic,
    arrange,
    cast,
    compare,
    composite,
    contract,
    create,
    effect,
    einsum,
    extremum,
    gather,
    movement,
    pointwise,
    random,
    reduce,
    sort,
    statistics,
    transfer,
    unary,
)
