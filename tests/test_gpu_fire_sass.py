"""Registers and shared memory are given away when nobody reads them any more: looked for in the machine code, where
ptxas has chosen the order.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import fire_cases
import pytest
import sass

from blutrain.nova.gpu.assemble import AssembleJob, assemble, ptxas_path

NAMES = [f"hopper {name}" for name in ("registers NN tf32", "three consumers TT tf32", "weights tf32", "gelu bf16", "gelu tf32",
                                      "column sums bf16", "large bf16", "large tf32", "accumulate bf16")]  # fmt: skip
LOOP = """
.section .text.k
        /*0000*/   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0008*/   BSSY B0, `(.L_x_1) ;
        /*0010*/   LDS.64 R{load}, [R5] ;
        /*0020*/   HGMMA.64x192x8.F32.TF32 R24, R120, gdesc[UR4], R24, gsb0 ;
        /*0030*/   WARPGROUP.DEPBAR.LE gsb0, {wait} ;
        /*0040*/   @P1 BRA `(.L_x_1) ;
        /*0050*/   EXIT ;
"""


@pytest.mark.parametrize("load, wait, is_fault", [(120, "0x0", False), (120, "0x1", True), (122, "0x1", True),
                                                  (118, "0x1", False), (130, "0x1", False)])  # fmt: skip
def test_a_register_that_is_loaded_again_too_early_is_found(load, wait, is_fault):
    function = sass.functions(LOOP.format(load=load, wait=wait))["k"]
    assert sass.overwritten(function) == ([f"LDS.64 R{load}, [R5]"] if is_fault else [])


def encoded(text: str, written: int = 7, waits: int = 0) -> str:
    control = (written << 5 | 7 << 8 | waits << 11) << 41
    return f"        /*0000*/   {text} ;   /* 0x0000000000000000 */\n   /* {control:#018x} */\n"


@pytest.mark.parametrize(
    "between, is_fault",
    [("", True), (encoded("FADD R8, R4, R5", waits=4), False), (encoded("FADD R8, R4, R5", waits=8), True),
     (encoded("MEMBAR.ALL.CTA"), False)],
)  # fmt: skip
def test_an_arrival_that_may_overtake_a_load_is_found(between, is_fault):
    lines = [
        encoded("WARPGROUP.DEPBAR.LE gsb0, 0x0"),
        encoded("LDS.64 R2, [R6]"),
        encoded("LDS.64 R4, [R7]", written=2),
    ]
    arrive = encoded("@!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR7+0x70], RZ")
    function = sass.functions("".join([".section .text.k\n", *lines, between, arrive, encoded("EXIT")]))["k"]
    assert sass.overtaken(function) == (["SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR7+0x70], RZ"] if is_fault else [])


@pytest.mark.skipif(not ptxas_path() or not sass.disassembler(), reason="needs ptxas and nvdisasm")
def test_nothing_is_given_away_that_is_still_read(tmp_path):
    """No register of a product's factor is written, no buffer handed back to TMA, before what reads it is done."""
    cases = [fire_cases.make(name) for name in NAMES]
    made = assemble([AssembleJob(case.kernel.text, case.kernel.target) for case in cases], strict=False)
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(lambda pair: sass.disassemble(pair[1].cubin, tmp_path / str(pair[0])), enumerate(made)))
    num_factors = 0
    for case, text in zip(cases, texts, strict=True):
        for name, function in sass.functions(text).items():
            assert not sass.overwritten(function), f"{case.name}: {name}"
            assert not sass.overtaken(function), f"{case.name}: {name}"
            num_factors += sum(bool(re.match(r"HGMMA\S* R\d+, R\d+", x.text)) for x in function.code)
    assert num_factors > 20
