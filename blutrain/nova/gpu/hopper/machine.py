"""Hopper's machinery as text: the ring of mbarriers, named barriers, wgmma with its waits.

Inline PTX stands where the nvvm dialect has no operation or one without the needed ordering: accumulators are tied
operands of every wgmma and of the wait, so that nothing can read them in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blutrain.nova.gpu.builder import Builder, Integer, struct
from blutrain.nova.gpu.hopper.tiles import BARRIER_BYTES

K_STEP_BYTES = 32  # k of one wgmma, in bytes of a row
WGMMAS_PER_STEP = 4
# Named barriers: 1 and up one for each consumer, ORDER and the one behind it for the turns of ping-pong.
CONSUMER_BARRIER, ORDER_BARRIER = 1, 4


@dataclass(frozen=True)
class Thread:
    """Where a thread stands. `shared`: address of dynamic shared memory."""

    shared: str
    index: str
    warp: str  # the same in all lanes, and the compiler knows it
    lane: str
    block: str

    @classmethod
    def read(cls, out: Builder) -> Thread:
        shared = out.value("llvm.mlir.addressof @shared : !llvm.ptr<3>")
        index = out.value("nvvm.read.ptx.sreg.tid.x : i32")
        warp = out.bits("shrui", index, 5)
        warp = out.value(f"nvvm.shfl.sync idx {out.name(-1)}, {warp}, {out.name(0)}, {out.name(31)} : i32 -> i32")
        return cls(
            shared=out.value(f"llvm.ptrtoint {shared} : !llvm.ptr<3> to i32"),
            index=index,
            warp=warp,
            lane=out.bits("andi", index, 31),
            block=out.value("nvvm.read.ptx.sreg.ctaid.x : i32"),
        )


class Ring:
    """Stages of shared memory, each with a barrier that tells it is full and one that tells it is empty.

    A place in the ring is (stage, parity); the parity flips each time round.
    """

    def __init__(self, out: Builder, address: Integer, stages: int):
        self.out, self.stages = out, stages
        self.first_full = address
        self.first_empty = out.add(address, BARRIER_BYTES * stages)

    def initialise(self, releases: int) -> None:
        """By one thread: a stage is full after one arrival and its bytes, empty after `releases` arrivals."""
        for stage in range(self.stages):
            for first, count in ((self.first_full, 1), (self.first_empty, releases)):
                barrier = self.out.shared_pointer(self.out.add(first, BARRIER_BYTES * stage))
                self.out.line(f"nvvm.mbarrier.init {barrier}, {self.out.name(count)} : !llvm.ptr<3>, i32")
        self.out.line("nvvm.fence.mbarrier.init")

    def full(self, stage: str) -> Integer:
        return self.out.add(self.first_full, self.out.mul(stage, BARRIER_BYTES))

    def empty(self, stage: str) -> Integer:
        return self.out.add(self.first_empty, self.out.mul(stage, BARRIER_BYTES))

    def wait(self, barrier: Integer, parity: Integer) -> None:
        text = (
            "{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [$0], $1;\n"
            "@P1 bra.uni DONE;\nbra.uni LAB_WAIT;\nDONE:\n}"
        )
        self.out.asm(text, "r,r,~{memory}", [(self.out.name(barrier), "i32"), (self.out.name(parity), "i32")])

    def expect(self, barrier: Integer, bytes_: int) -> None:
        text = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        self.out.asm(text, "r,r,~{memory}", [(self.out.name(barrier), "i32"), (self.out.name(bytes_), "i32")])

    def release(self, stage: str, condition: str, rank: str = "") -> None:
        """One arrival at the stage's empty barrier, by the threads whose `condition` (an i32) is not 0; in a cluster
        at that of block `rank`. The plain form: `.release.cluster` would fence the whole device at every step.
        """
        barrier = [(self.out.name(self.empty(stage)), "i32"), (condition, "i32")]
        if not rank:
            text = "{\n.reg .pred p;\nsetp.ne.b32 p, $1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [$0];\n}"
            self.out.asm(text, "r,r,~{memory}", barrier)
            return
        text = (
            "{\n.reg .pred p;\n.reg .b32 remote;\nsetp.ne.b32 p, $1, 0;\n"
            "@p mapa.shared::cluster.u32 remote, $0, $2;\n@p mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
        )
        self.out.asm(text, "r,r,r,~{memory}", [*barrier, (rank, "i32")])

    def start(self) -> tuple[str, str]:
        return self.out.name(0), self.out.name(0)

    def next(self, stage: str, parity: str) -> tuple[str, str]:
        return self.advance(stage, parity, 1)

    def advance(self, stage: str, parity: str, steps: int) -> tuple[str, str]:
        out = self.out
        rounds, rest = divmod(steps, self.stages)
        moved = out.add(stage, rest)
        wraps = out.compare("sge", moved, self.stages)
        parity = out.name(out.bits("xori", parity, out.as_integer(wraps)))
        if rounds % 2:
            parity = out.name(out.bits("xori", parity, 1))
        return out.select(wraps, out.sub(moved, self.stages), moved), parity


def named_barrier(out: Builder, number: Integer, threads: int) -> None:
    out.line(f"nvvm.barrier id = {out.name(number)} number_of_threads = {out.name(threads)}")


def warp_barrier(out: Builder) -> None:
    out.line(f"nvvm.bar.warp.sync {out.name(-1)} : i32")


def proxy_fence(out: Builder) -> None:
    """This thread's accesses to shared memory come before TMA's that follow a meeting."""
    out.line("nvvm.fence.proxy { kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>}")


def arrive_named_barrier(out: Builder, number: Integer, threads: int) -> None:
    out.line(f"nvvm.barrier.arrive id = {out.name(number)} number_of_threads = {out.name(threads)}")


def cluster_barrier(out: Builder, is_relaxed: bool = False) -> None:
    """All threads of a cluster meet; what they wrote is visible to all, unless the meeting is relaxed, which takes less."""
    out.line("nvvm.cluster.arrive.relaxed" if is_relaxed else "nvvm.cluster.arrive")
    out.line("nvvm.cluster.wait")


def _clobbers(accumulators: int) -> str:
    return ",".join(["=f"] * accumulators + [str(i) for i in range(accumulators)])


@dataclass(frozen=True)
class Wgmma:
    """One k-step of a warpgroup: `blocks` x 4 wgmmas of 64 x `columns`, then a commit.

    `p_step`/`q_step`: descriptor units (16 bytes) from one wgmma's k to the next; a block of 64 rows is 512 of them.
    """

    dtype: str
    blocks: int
    columns: int
    p_step: int
    q_step: int
    p_transposed: bool = False
    q_transposed: bool = False

    @property
    def per_block(self) -> int:
        return self.columns // 2

    @property
    def accumulators(self) -> int:
        return self.blocks * self.per_block

    def from_shared(self, out: Builder, accumulators: list[str], p: str, q: str, first: bool) -> list[str]:
        """Both factors by descriptors `p` and `q` (i64). `first`: start from zero."""
        count = self.accumulators
        lines = [
            ".reg .pred first, later;",
            ".reg .b64 p, q;",
            "setp.ne.b32 later, 1, 0;",
            "setp.ne.b32 first, 0, 0;",
            "wgmma.fence.sync.aligned;",
        ]
        majors = f", {int(self.p_transposed)}, {int(self.q_transposed)}" if self.dtype != "tf32" else ""
        for step in range(WGMMAS_PER_STEP):
            for block in range(self.blocks):
                scale = "first" if first and step == 0 else "later"
                lines += [
                    f"add.s64 p, ${2 * count}, {step * self.p_step + block * 512};",
                    f"add.s64 q, ${2 * count + 1}, {step * self.q_step};",
                    f"{self._opcode} {{{self._registers(block)}}}, p, q, {scale}, 1, 1{majors};",
                ]
        lines.append("wgmma.commit_group.sync.aligned;")
        arguments = [(a, "f32") for a in accumulators] + [(p, "i64"), (q, "i64")]
        return self._run(out, lines, _clobbers(count) + ",l,l", arguments)

    def from_registers(
        self, out: Builder, accumulators: list[str], fragments: list[str], q: str, first: int, keep: str | None
    ) -> list[str]:
        """The wgmmas from number `first` on whose p is in `fragments` (i32, [k-step][block][4]), then a commit. `keep`
        (an i32): start from zero where it is 0; None: never.
        """
        count, num_fragments = self.accumulators, len(fragments)
        last = 2 * count + num_fragments
        lines = [
            ".reg .pred first, later;",
            ".reg .b64 q;",
            "setp.ne.b32 later, 1, 0;",
            f"setp.ne.b32 first, {f'${last + 1}' if keep else '1'}, 0;",
            "wgmma.fence.sync.aligned;",
        ]
        for step in range(num_fragments // (4 * self.blocks)):
            for block in range(self.blocks):
                place = 2 * count + 4 * (step * self.blocks + block)
                fragment = ", ".join(f"${place + i}" for i in range(4))
                scale = "first" if step == 0 else "later"
                lines += [
                    f"add.s64 q, ${last}, {(first + step) * self.q_step};",
                    f"{self._opcode} {{{self._registers(block)}}}, {{{fragment}}}, q, {scale}, 1, 1;",
                ]
        lines.append("wgmma.commit_group.sync.aligned;")
        constraints = ",".join([_clobbers(count), *["r"] * num_fragments, "l", *(["r"] if keep else [])])
        arguments = [(a, "f32") for a in accumulators] + [(f, "i32") for f in fragments] + [(q, "i64")]
        return self._run(out, lines, constraints, arguments + ([(keep, "i32")] if keep else []))

    def wait_all(self, out: Builder, accumulators: list[str]) -> list[str]:
        """The sums, once every wgmma of this warpgroup is done."""
        arguments = [(a, "f32") for a in accumulators]
        text = "wgmma.wait_group.sync.aligned 0;"
        result = out.asm(text, _clobbers(self.accumulators), arguments, struct("f32", self.accumulators))
        return out.unpack(result, "f32", self.accumulators)

    @property
    def _opcode(self) -> str:
        k = 8 if self.dtype == "tf32" else 16
        return f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{k}.f32.{self.dtype}.{self.dtype}"

    def _registers(self, block: int) -> str:
        return ",".join(f"${block * self.per_block + i}" for i in range(self.per_block))

    def _run(self, out: Builder, lines: list[str], constraints: str, arguments: list[tuple[str, str]]) -> list[str]:
        text = "{\n" + "\n".join(lines) + "\n}"
        result = out.asm(text, constraints, arguments, struct("f32", self.accumulators))
        return out.unpack(result, "f32", self.accumulators)


def wait_all_but_one(out: Builder, read: Sequence[str] = ()) -> None:
    """All wgmma groups but the newest are done: what they read may be overwritten. `read`: registers (i32) among that,
    which must not be given away before.
    """
    constraints = ",".join([*["r"] * len(read), "~{memory}"])
    out.asm("wgmma.wait_group.sync.aligned 1;", constraints, [(x, "i32") for x in read])
