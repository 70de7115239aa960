"""order_launches: the kernels in an order that keeps few bytes alive.

Before: forward, backward and all optimizer updates, as recorded.

    %g0 = "nova.kernel"(...)              // gradient of p0
    %g1 = "nova.kernel"(...)              // gradient of p1
    %p0 = "nova.kernel"(%arg0, %g0)       // update of p0
    %p1 = "nova.kernel"(%arg1, %g1)

After: an update stands right behind the gradient's last contribution and behind every reader of the old parameter, so
that the gradient's memory is free for the next one.

    %g0 = "nova.kernel"(...)
    %p0 = "nova.kernel"(%arg0, %g0)
    %g1 = "nova.kernel"(...)
    %p1 = "nova.kernel"(%arg1, %g1)

The rule is general: a launch that frees at least as many bytes as it allocates runs as soon as it can; the others run
as recorded. A launch that computes new state waits for the guard (all value checks) and for the readers of the old
state, unless they need its result. What makes the checks' flags runs as soon as it can: updates then wait for gradients
alone.

Collectives start where their last gradient is there, in the order of the buckets, which all processes share. One is
waited for where nothing else can run, or AHEAD more have started: then its gradients are needed, and the updates free
them, while the later ones go on.

    %b0 = "nova.bucket_ready"(%g0)
    %g1 = "nova.kernel"(...)
    %b1 = "nova.bucket_ready"(%g1)
    %w0 = "nova.bucket_wait"(%b0)         // the end of backward
    %p0 = "nova.kernel"(%arg0, %w0)
    %w1 = "nova.bucket_wait"(%b1)
    %p1 = "nova.kernel"(%arg1, %w1)

Behind the last one nothing is left to compute but updates: enough of them are kept for it, whatever bytes they would
free.
"""

from __future__ import annotations

from mlir import ir

from .step_launches import VIEWS, StepLaunches

NAME = "order_launches"
AHEAD = 2
# Bytes of gradients whose updates take as long as one byte takes between GPUs: an update moves 7 bytes for each at 4.8
# TB/s, NVLink 1 to 1.75 at 0.3 TB/s (2 to 8 GPUs; measured: 512 MiB in 1.77 ms on two).
COVER = 3
SMALL_BYTES = 4096  # flags, and what they are made of


def run(module: ir.Module, facts) -> None:
    """See the module."""
    step = StepLaunches(module)
    order = order_of(step)
    if order != sorted(order):
        _move(step, order)


def order_of(step: StepLaunches) -> list[int]:
    """Numbers of launches in their new order."""
    before = _dependences(step)
    users: list[list[int]] = [[] for _ in step.launches]
    for number, sources in enumerate(before):
        for source in sources:
            users[source].append(number)
    waiting = [len(sources) for sources in before]
    unread = [len(buffer.readers) for buffer in step.buffers]
    ready = {number for number, count in enumerate(waiting) if not count}
    order: list[int] = []
    started, flags, kept = 0, _flags(step, before), _kept_for_the_last(step)
    while ready:
        number = min(ready & flags, default=None)
        number = _next(step, ready, unread, started, kept) if number is None else number
        ready.remove(number)
        started += step.launches[number].is_start
        order.append(number)
        for buffer in set(map(step.whole, step.launches[number].operands)):
            unread[buffer] -= 1
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.add(user)
    return order


def _flags(step: StepLaunches, before: list[set[int]]) -> set[int]:
    """The launches that the guard needs, where they make small results only."""
    found: set[int] = set()
    pending = [] if step.guard is None else step.writers(step.guard)
    while pending:
        number = pending.pop()
        if number not in found:
            found.add(number)
            pending += before[number]
    return {n for n in found if sum(step.buffers[r].bytes for r in step.launches[n].results) <= SMALL_BYTES}


def _kept_for_the_last(step: StepLaunches) -> set[int]:
    """Buckets that are not waited for before the last has started."""
    sizes = {b.bucket: step.buffers[step.whole(b.operands[0])].bytes for b in step.launches if b.is_start}
    *others, last = sizes.values() if sizes else (0,)
    kept, covered = set(), 0
    for bucket, size in reversed(list(zip(sizes, others, strict=False))):
        if covered >= COVER * last:
            break
        kept.add(bucket)
        covered += size
    return kept


def _next(step: StepLaunches, ready: set[int], unread: list[int], started: int, kept: set[int]) -> int:
    """The launch that runs next: `started` collectives are under way or done, `kept` ones are not waited for yet."""
    starts = [number for number in ready if step.launches[number].is_start]
    if starts:
        return min(starts)
    waits = [number for number in ready if step.launches[number].is_wait]
    buckets = {n: bucket for n in waits if (bucket := step.launches[n].bucket) is not None}
    due = [n for n, bucket in buckets.items() if bucket + AHEAD < started and bucket not in kept]
    others = ready.difference(waits)
    if due or not others:
        return min(due or waits)
    return min((number for number in others if _growth(step, number, unread) <= 0), default=min(others))


def _growth(step: StepLaunches, number: int, unread: list[int]) -> int:
    """Bytes that launch `number` adds to what is alive, were it next."""
    launch = step.launches[number]
    results = [step.buffers[r] for r in launch.results]
    allocated = sum(b.bytes for b in results if b.state is None and not b.outputs)
    freed = 0
    for buffer in (step.buffers[n] for n in dict.fromkeys(map(step.whole, launch.operands))):
        if (
            unread[buffer.number] == 1
            and step.writers(buffer.number)
            and not buffer.outputs
            and buffer.state is None
            and not buffer.is_flag
        ):
            freed += buffer.bytes
    return allocated - freed


def _dependences(step: StepLaunches) -> list[set[int]]:
    """For every launch those that come before it: writers of what it reads, the guard's, and readers of state that it
    overwrites.
    """
    before: list[set[int]] = []
    for launch in step.launches:
        writers = {writer for buffer in launch.operands for writer in step.writers(buffer)}
        before.append(writers.union(launch.after))
    reach = _reach(before)
    guard = step.buffers[step.guard].writer if step.guard is not None else None
    for number, launch in enumerate(step.launches):
        states = step.writes_state(launch)
        wanted = {reader for state in states for reader in step.buffers[state].readers if reader != number}
        if guard is not None and states:
            wanted.add(guard)
        for source in sorted(wanted):
            if not reach[source] >> number & 1:
                before[number].add(source)
                _extend(reach, before, number, source)
    return before


def _reach(before: list[set[int]]) -> list[int]:
    """Bit sets of all launches before each one (itself included); launches are in an order that respects `before`."""
    reach: list[int] = []
    for number, sources in enumerate(before):
        bits = 1 << number
        for source in sources:
            bits |= reach[source]
        reach.append(bits)
    return reach


def _extend(reach: list[int], before: list[set[int]], number: int, source: int) -> None:
    """`source` now comes before `number`, and so before everything that follows it."""
    added = reach[source]
    for other in range(len(reach)):
        if reach[other] >> number & 1:
            reach[other] |= added


def _move(step: StepLaunches, order: list[int]) -> None:
    """Kernels in their new order, each followed by the views that its results complete, in front of checks and
    assigns.
    """
    operations = step.graph.operations()
    first = next(op for op in operations if op.name in ("nova.check", "nova.assign", "func.return"))
    position = {r: order.index(number) for number, launch in enumerate(step.launches) for r in launch.op.results}
    views: dict[int, list[ir.Operation]] = {}
    for op in operations:
        if op.name in VIEWS:
            position[op.results[0]] = max(position.get(v, -1) for v in op.operands)
            views.setdefault(position[op.results[0]], []).append(op)
    for place, number in enumerate((-1, *order), start=-1):
        moved = [step.launches[number].op] if number >= 0 else []
        for op in (*moved, *views.get(place, ())):
            op.move_before(first)
