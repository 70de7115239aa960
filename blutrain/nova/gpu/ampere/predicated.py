"""A load that a condition guards, as one instruction of inline PTX."""

from __future__ import annotations

from blutrain.nova.gpu.builder import Builder, struct
from blutrain.nova.kernel import ITEM_BYTES


def load_if(out: Builder, condition: str, base: str, offset: int, dtype: str, count: int, constant: bool) -> list[str]:
    """`count` neighbours at `base` plus `offset` elements as one access, zeros where `condition` (an i1) is false.

    A predicated instruction: a branch would end the block, and selected pointers take two registers each.
    """
    item = ITEM_BYTES[dtype]
    if not -(1 << 23) <= offset * item < 1 << 23:
        base, offset = out.pointer(base, offset, dtype), 0
    bits = 64 if item == 8 else 8 * min(4, item * count)
    words = item * count * 8 // bits
    names = [f"${i}" for i in range(words)]
    register, constraint, word = {
        8: ("b16", "h", "i16"),
        16: ("b16", "h", "i16"),
        32: ("b32", "r", "i32"),
        64: ("b64", "l", "i64"),
    }[bits]
    vector = f".v{words}" if words > 1 else ""
    target = f"{{{','.join(names)}}}" if words > 1 else names[0]
    access = f"ld.global{'.nc' if constant else ''}{vector}.b{bits} {target}, [${words}+{offset * item}];"
    lines = [
        "{",
        ".reg .pred p;",
        f"setp.ne.b32 p, ${words + 1}, 0;",
        *(f"mov.{register} {name}, 0;" for name in names),
        f"@p {access}",
        "}",
    ]
    constraints = ",".join([*[f"=&{constraint}"] * words, "l", "r", *([] if constant else ["~{memory}"])])
    arguments = [(base, "!llvm.ptr"), (out.as_integer(condition), "i32")]
    loaded = out.asm("\n".join(lines), constraints, arguments, word if words == 1 else struct(word, words))
    parts = [loaded] if words == 1 else out.unpack(loaded, word, words)
    if bits == 8:
        return [out.value(f"arith.trunci {parts[0]} : i16 to i8")]
    return [x for part in parts for x in _elements_of(out, part, word, dtype, bits // (8 * item))]


def _elements_of(out: Builder, part: str, word: str, dtype: str, count: int) -> list[str]:
    """The elements in a register."""
    if count == 1:
        return [part if word == dtype else out.value(f"llvm.bitcast {part} : {word} to {dtype}")]
    packed = out.value(f"llvm.bitcast {part} : {word} to vector<{count}x{dtype}>")
    return [out.element(packed, i, dtype, count) for i in range(count)]
