"""Expressions that mean the same with PyTorch and with blutrain: `m` is either module, `F` its functional, the other names
are tensors. By family; those of `REFUSED` families are not compiled, and say so.
"""

from __future__ import annotations

import numpy as np

_rng = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape)


ARRAYS = {
    "x": _floats(3, 4),
    "y": _floats(3, 4),
    "v": _floats(5),
    "w": _floats(4),
    "t": _floats(2, 3, 4),
    "p": _rng.uniform(0.05, 0.95, (3, 4)),  # probabilities
    "s": np.sort(_floats(3, 6)),
    "ties": np.array([[1.0, 1, 0, 2], [2, 2, 2, 2], [0, 1, 0, 1]]),
    "special": np.array([np.nan, np.inf, -np.inf, 1.0, 0.0]),
    "i": np.array([[0, 2, 1, 0], [3, 3, 0, 1]]),
    "k": np.array([2, 0, 2]),
    "n": np.array([3, 1, 4, 1, 5, 1]),
}
REFUSED = {"order": "argsort", "search": "searchsorted", "counts": "a value is read"}

EXPRESSIONS = {
    "order": """
        m.topk(x, 2, dim=1)
        m.topk(x, 2, dim=0, largest=False, sorted=True)
        m.sort(x, dim=0, descending=True)
        m.sort(ties, dim=1, stable=True)
        m.argsort(ties, dim=1, descending=True, stable=True)
        m.kthvalue(x, 2, dim=1)
        m.kthvalue(x, 3, dim=1, keepdim=True)
        m.median(x)
        m.median(x, 1)
        m.median(v, 0, True)
        m.median(special, 0)
        m.median(n)
        m.take_along_dim(x, x.argsort(1), 1)
    """,
    "search": """
        m.searchsorted(s, x)
        m.searchsorted(s, x, right=True)
        m.searchsorted(s[0].contiguous(), 0.1)
        m.searchsorted(s[0].contiguous(), x, side="right")
        m.bucketize(x, s[0].contiguous(), right=True)
    """,
    "counts": """
        m.unique(n)
        m.unique(n, return_inverse=True, return_counts=True)
        m.unique(ties.detach(), dim=0)
        m.unique(special.detach())
        m.unique(i, return_inverse=True)
        m.bincount(n)
        m.bincount(n, minlength=9)
        m.bincount(n, weights=w.detach()[[0, 1, 2, 3, 0, 1]])
        m.bincount(n[:0])
    """,
    "scatter": """
        x.scatter(1, i[:, :3], 0.5)
        x[:2].scatter(0, i[:1] // 2, y[:1])
        m.zeros(3, 4).scatter_(1, k[:, None], 1.0)
        m.zeros(3, 5).scatter_add_(1, k[:, None], m.ones(3, 1))
        x.clone().index_fill_(1, k, -1.0)
        x.index_fill(0, k[:1], 2.0)
        x.clone().index_add_(0, k, y, alpha=2)
        x.clone().index_copy_(0, k[:1], y[:1])
        m.take_along_dim(x, i[:1, :2], 1)
        F.one_hot(k, 4)
    """,
    "arrange": """
        m.hstack([v, v])
        m.hstack([x, y])
        m.vstack([w, x])
        m.meshgrid(v, w, indexing="ij")
        m.meshgrid(v, w, indexing="xy")
        m.tile(x, (2,))
        x.tile(2, 1, 2)
        m.ravel(t)
        m.diagonal(x, 1)
        m.diagonal(x, -1)
        m.diagonal(t, 0, 1, 2)
        m.diagonal(t, 2, 2, 0)
        m.diagonal(x, 9)
        m.diag(x)
        m.diag(v, 1)
        m.diag(v, -2)
        m.trace(x)
        m.swapaxes(t, 0, 2)
        m.moveaxis(t, 0, 2)
        m.concat([x, y], dim=1)
        x.clone().tril_()
        x.clone().triu_(1)
        x.new_zeros(2, 3)
        x.new_full((2,), 3)
    """,
    "formulas": """
        m.lerp(x, y, 0.3)
        m.lerp(x, y, p)
        m.addcmul(x, y, p, value=0.5)
        m.addcdiv(x, y, p + 1, value=0.5)
        x.clone().addcmul_(y, p, value=2)
        m.logaddexp(x, y)
        m.logaddexp(special, special)
        m.nan_to_num(special)
        m.nan_to_num(special, nan=1.0, posinf=2.0, neginf=3.0)
        m.clip(x, -0.5, 0.5)
        x.clone().relu_()
    """,
    "activations": """
        F.leaky_relu(x, 0.2)
        F.elu(x * 30, alpha=0.5)
        F.softplus(x * 20)
        F.softplus(x * 0)
        F.softplus(x, beta=2.0, threshold=3)
        F.logsigmoid(x * 20)
        F.hardtanh(x)
        F.relu6(x * 5)
        F.mish(x)
        F.glu(x, dim=1)
        F.softmin(x, dim=1)
    """,
    "losses": """
        F.l1_loss(x, y)
        F.smooth_l1_loss(x, y, beta=0.3, reduction="sum")
        F.smooth_l1_loss(x, y, beta=0.0)
        F.huber_loss(x, y, delta=0.5, reduction="none")
        F.nll_loss(F.log_softmax(x, 1), k)
        F.nll_loss(F.log_softmax(x, 1), k, ignore_index=2)
        F.nll_loss(F.log_softmax(x, 1), k, reduction="none", ignore_index=2)
        F.nll_loss(F.log_softmax(x, 1), k, weight=w.abs().detach())
        F.nll_loss(F.log_softmax(w, 0), k[0])
        F.binary_cross_entropy(p, (y > 0).to(p.dtype))
        F.binary_cross_entropy((x > 0).to(p.dtype), (y > 0).to(p.dtype))
        F.binary_cross_entropy_with_logits(x * 50, (y > 0).to(p.dtype))
        F.binary_cross_entropy_with_logits(x * 0, p, reduction="none")
        F.binary_cross_entropy_with_logits(x, p, w.abs().detach(), pos_weight=w.abs().detach())
        F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean")
        F.kl_div(F.log_softmax(x, 1), F.log_softmax(y, 1), reduction="sum", log_target=True)
        F.kl_div(F.log_softmax(x, 1), F.one_hot(k, 4).to(x.dtype), reduction="sum")
        F.cross_entropy(x, k, weight=w.abs().detach())
        F.cross_entropy(x, k, weight=w.abs().detach(), label_smoothing=0.1)
        F.cross_entropy(x, k, weight=w.abs().detach(), label_smoothing=0.1, reduction="none", ignore_index=2)
        F.cross_entropy(x, F.softmax(y, 1), label_smoothing=0.1)
        F.cross_entropy(w, F.softmax(y[0], 0), reduction="sum")
        F.cosine_similarity(x, y)
        F.cosine_similarity(x * 0, y, dim=0)
        F.normalize(x)
        F.normalize(x * 0)
        F.normalize(x, p=1.0, dim=0)
        F.pairwise_distance(x, y)
        F.triplet_margin_loss(x, y, p)
        F.cosine_embedding_loss(x, y, x.detach()[:, 0].sign(), margin=0.1)
        F.cosine_embedding_loss(x, y, x.detach()[:, 0].sign(), reduction="none")
        F.margin_ranking_loss(x, y, p.detach().sub(0.5).sign(), margin=0.3)
        F.margin_ranking_loss(x, y, p.detach().sub(0.5).sign(), reduction="sum")
    """,
    "attention": """
        F.scaled_dot_product_attention(t, t * 0.5, t)
        F.scaled_dot_product_attention(t[:, None], t[:, None] * 0.5, t[:, None], is_causal=True)
        F.scaled_dot_product_attention(t, t, t, attn_mask=m.ones(3, 3).tril() > 0, scale=0.5)
        F.scaled_dot_product_attention(t, t, t, attn_mask=x[:, :3])
    """,
}


def expressions(family: str) -> list[str]:
    return [line.strip() for line in EXPRESSIONS[family].strip().splitlines()]
