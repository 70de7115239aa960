"""Products that are added to a matrix in its own memory: `C + product`, and nothing else is made of either.

Such a kernel need not read C: the L2 adds what is stored, once for each element and launch, with the one rounding that
a sum in registers has (but sums below 2^-126 become zero). So the product is written as if there were no C.
"""

from __future__ import annotations

import dataclasses

from blutrain.nova.contract.form import Accumulated, Apply, Contract, Expression, Load, Store, loads
from blutrain.nova.kernel import Access, Operand


def added_in_place(contract: Contract) -> Contract | None:
    """The contract whose result, the product alone, is to be added to memory; None where the kernel is no such sum."""
    if len(contract.stores) != 1 or contract.reductions or contract.row_reductions:
        return None
    (store,) = contract.stores
    term = _other_term(contract, store.value)
    if term is None or not _is_same_memory(contract, term, store):
        return None
    factors = [access for f in (contract.rows, contract.columns) for access in loads(f.value)]
    if any(access.source == term.source for access in factors):
        return None
    return dataclasses.replace(contract, init=None, stores=(Store(Accumulated(), store.access),))


def _other_term(contract: Contract, value: Expression) -> Access | None:
    """What the product starts from, or is added to behind it."""
    if isinstance(value, Accumulated):
        return contract.init.access if contract.init is not None else None
    if contract.init is not None or not isinstance(value, Apply):
        return None
    if value.generic.block_ops != ("arith.addf", "linalg.yield") or len(value.arguments) != 2:
        return None
    addition = value.generic.block.operations[0].operation
    if set(addition.operands) != set(list(value.generic.block.arguments)[:2]):
        return None
    terms = [argument.access for argument in value.arguments if isinstance(argument, Load)]
    return terms[0] if len(terms) == 1 and Accumulated() in value.arguments else None


def _is_same_memory(contract: Contract, term: Access, store: Store) -> bool:
    """Is each element added to the one that the kernel's only result has in the same place."""
    is_in_place = isinstance(term.source, Operand) and contract.kernel.aliases == (term.source.index,)
    places = {(a.dtype, a.strides, a.offset) for a in (term, store.access)}
    return is_in_place and places == {("f32", store.access.strides, store.access.offset)}
