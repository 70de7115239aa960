"""Sums of products in Einstein's notation, made of transposes and matrix products."""

from __future__ import annotations

import math

from ...errors import message
from . import contract, movement


def einsum(equation: str, *operands):
    """`einsum("bik,bkj->bij", x, y)`: letters name dimensions, those missing behind `->` are summed over.

    Several operands are contracted from left to right. Without `->` the result has the letters that appear once, in
    alphabetical order. Errors: ValueError for letters that do not fit the operands, an ellipsis, a letter twice in one.

    >>> bt.einsum("ik,kj->ij", bt.ones(2, 3), bt.eye(3, 2))
    tensor([[1., 1.],
            [1., 1.]])
    """
    terms, result = _parse(equation, operands)
    extents: dict[str, int] = {}
    for labels, x in zip(terms, operands, strict=True):
        for label, n in zip(labels, x.shape, strict=True):
            if extents.setdefault(label, n) != n:
                raise ValueError(message("einsum", f"{label} has two extents", got=f"{extents[label]} and {n}"))
    labels, total = terms[0], operands[0]
    for i in range(1, len(operands)):
        later = set(result).union(*terms[i + 1 :])
        labels, total = _product(labels, total, terms[i], operands[i], later, extents)
    labels, total = _sum_out(labels, total, set(result))
    return movement.transpose_to(total, tuple(labels.index(c) for c in result))


def _parse(equation: str, operands) -> tuple[list[str], str]:
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = "".join(terms)
    if not arrow:
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    well_formed = all(t.isalpha() or not t for t in (*terms, result)) and all(
        len(set(t)) == len(t) for t in (*terms, result)
    )
    if not operands or not well_formed or not set(result) <= set(letters):
        raise ValueError(
            message("einsum", "the equation is not understood", expected='such as "ik,kj->ij"', got=repr(equation))
        )
    if len(terms) != len(operands) or any(len(t) != x.ndim for t, x in zip(terms, operands)):
        got = f"{equation!r} of " + ", ".join(str(x._aval) for x in operands)
        raise ValueError(message("einsum", "each operand has one letter per dimension", got=got))
    return terms, result


def _sum_out(labels: str, x, keep: set[str]):
    """Sum over the dimensions whose letters are not kept."""
    gone = tuple(d for d, c in enumerate(labels) if c not in keep)
    return ("".join(c for c in labels if c in keep), x.sum(gone)) if gone else (labels, x)


def _product(left: str, x, right: str, y, later: set[str], extents: dict[str, int]):
    """Two operands contracted over the letters that nothing later needs: (letters, tensor)."""
    left, x = _sum_out(left, x, later | set(right))
    right, y = _sum_out(right, y, later | set(left))
    batch = [c for c in left if c in right and c in later]
    summed = [c for c in left if c in right and c not in later]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]

    def arranged(labels: str, tensor, *groups):
        order = [c for group in groups for c in group]
        moved = movement.transpose_to(tensor, tuple(labels.index(c) for c in order))
        return movement.reshape(moved, tuple(math.prod(extents[c] for c in group) for group in groups))

    product = contract.matmul(arranged(left, x, batch, rows, summed), arranged(right, y, batch, summed, columns))
    labels = "".join((*batch, *rows, *columns))
    return labels, movement.reshape(product, tuple(extents[c] for c in labels))
