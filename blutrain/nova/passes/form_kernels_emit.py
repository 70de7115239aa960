"""Writes the step again with its groups as `nova.kernel` operations whose bodies are the operations they came from."""

from __future__ import annotations

import heapq
from collections import Counter

from ..dialect.definition import TERMINATOR
from .form_kernels_graph import SCAN, SCATTER, SINK, Node, StepGraph, Value
from .form_kernels_groups import Group, Groups, source_node
from .form_kernels_memory import memory_of
from .form_kernels_skip import skip_attributes

GUARD = "any check"  # the message of the flag that stands for all
UNKNOWN = "loc(unknown)"
# Anchors whose kernels have one result; others store it again where it leaves the step again.
STORE_ONCE = (SCAN, SCATTER)
MAX_LINES = 8  # user lines kept on a kernel: the first of each of its operations, without repetition


class StepWriter:
    """Text of `func.func @step` made of kernels, reshapes of memory, checks and assigns."""

    def __init__(self, graph: StepGraph, groups: Groups):
        self.graph, self.groups = graph, groups
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.attributes: dict[int, str] = {}
        self.sinks = [node for node in graph.nodes if node.kind == SINK]
        leaving = [*graph.outputs, *(node.operands[1] for node in self.sinks if node.name == "assign")]
        self.leaving = Counter(memory_of(value).number for value in leaving)
        self.copies: dict[int, list[str]] = {number: [] for number in self.leaving}
        self.read_outside = self._find_read_outside()

    def body(self) -> str:
        """The function's body; its arguments are %arg0, %arg1, ..."""
        for i, argument in enumerate(self.graph.arguments):
            self.names[argument.number] = f"%arg{i}"
        for group in self._in_order():
            if group.roots[0].node.is_memory:
                self._memory(group.roots[0].node)
            else:
                self._kernel(group)
        self._guard()
        outputs = [self._taken(value) for value in self.graph.outputs]
        checks, assigns = [], []
        for node in self.sinks:
            if node.name == "assign":
                operands = [self.names[node.operands[0].number], self._taken(node.operands[1])]
            else:
                operands = [self._named(value) for value in node.operands]
            types = ", ".join(v.type_text for v in node.operands)
            typed = f"{self._attributes(node)} : ({types}) -> () {node.location}"
            text = f'  "nova.{node.name}"({", ".join(operands)}) {typed}'
            (assigns if node.name == "assign" else checks).append(text)
        types = ", ".join(v.type_text for v in self.graph.outputs)
        self.lines += [
            *checks,
            *assigns,
            f"  func.return {', '.join(outputs)}{' : ' if outputs else ''}{types} {UNKNOWN}",
        ]
        return "\n".join(self.lines)

    def _guard(self) -> None:
        """Where several checks can fail: one flag for all, which the launches that write state are predicated on."""
        checks = [node for node in self.sinks if node.name == "check"]
        if len(checks) < 2:
            return
        type_ = "tensor<i32>"
        flags = [(self._named(node.operands[0]), f"%i{i}", type_) for i, node in enumerate(checks)]
        lines, found = [], "%i0"
        for i in range(1, len(flags)):
            lines.append(f'    %v{i} = "nova.bitwise_or"({found}, %i{i}) : ({type_}, {type_}) -> {type_} {UNKNOWN}')
            found = f"%v{i}"
        self._write(["%guard"], flags, lines, [(found, type_)], "map", _fused(checks))
        attributes = f'{{index = -1 : i64, message = "{GUARD}"}}'
        self.lines.append(f'  "nova.check"(%guard) {attributes} : ({type_}) -> () {_fused(checks)}')

    def _find_read_outside(self) -> set[int]:
        """Values that another kernel than their own reads, or a check."""
        found = {memory_of(node.operands[0]).number for node in self.sinks if node.name == "check"}
        for group in self.groups.groups:
            for root in group.roots:
                for read in root.leaves:
                    source = source_node(read)
                    if source is not None and self.groups.of[source.number] is not group:
                        found.add(memory_of(read.value).number)
        return found

    # --- copies: an output or a new state shares its memory with nothing else

    def _taken(self, value: Value) -> str:
        """The next unused copy of `value`, in its own shape."""
        memory = memory_of(value)
        names = self.copies[memory.number]
        name = names.pop(0) if memory.node is not None else self._copy_kernel(memory)
        return name if memory is value else self._reshape(name, memory, value)

    def _copy_kernel(self, value: Value) -> str:
        name, type_ = f"%copy{len(self.lines)}", value.type_text
        self._write([name], [(self.names[value.number], "%i0", type_)], [], [("%i0", type_)], "map", UNKNOWN)
        return name

    # --- kernels

    def _in_order(self) -> list[Group]:
        """Groups after those they depend on; of the ready ones that whose first root comes first in the program."""
        alive = {group.number: group for group in self.groups.groups if group.roots}
        users: dict[int, list[int]] = {}
        waiting: dict[int, int] = {}
        for group in alive.values():
            sources = {
                self.groups.of[n.number].number
                for root in group.roots
                for r in root.leaves
                if (n := source_node(r)) is not None
            }
            sources.discard(group.number)
            waiting[group.number] = len(sources)
            for source in sources:
                users.setdefault(source, []).append(group.number)
        ready = [(g.roots[0].node.number, g.number) for g in alive.values() if not waiting[g.number]]
        heapq.heapify(ready)
        ordered = []
        while ready:
            group = alive[heapq.heappop(ready)[1]]
            ordered.append(group)
            for user in users.get(group.number, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (alive[user].roots[0].node.number, user))
        if len(ordered) != len(alive):
            raise RuntimeError("form_kernels: the groups depend on each other in a circle")
        return ordered

    def _kernel(self, group: Group) -> None:
        nodes = {node.number: node for root in group.roots for node in (*root.inner, root.node)}
        body = [nodes[number] for number in sorted(nodes)]
        operands: dict[int, Value] = {}
        for node in body:
            for value in node.operands:
                if value.node is None or value.node.number not in nodes:
                    operands.setdefault(value.number, value)
        made = [value for root in group.roots for value in root.node.results if self._times(value)]
        once = group.anchor in STORE_ONCE
        results = [value for value in made for _ in range(1 if once else self._times(value))]
        outer = [self._named(value) for value in operands.values()]
        inner = {number: f"%i{i}" for i, number in enumerate(operands)}
        arguments = [(o, inner[n], v.type_text) for o, (n, v) in zip(outer, operands.items(), strict=True)]
        lines = [self._operation(node, inner) for node in body]
        names = [f"%k{results[0].number}_{i}" for i in range(len(results))]
        yields = [(inner[v.number], v.type_text) for v in results]
        held = "".join(f", {k} = {v}" for k, v in skip_attributes(results, list(operands.values())).items())
        self._write(names, arguments, lines, yields, group.anchor, _fused(body), held)
        for name, value in zip(names, results, strict=True):
            self.names.setdefault(value.number, name)
            if value.number in self.copies:
                self.copies[value.number].append(name)
        for value in made if once else ():
            self.copies.setdefault(value.number, []).extend(
                self._copy_kernel(value) for _ in range(self.leaving[value.number] - 1)
            )

    def _memory(self, node: Node) -> None:
        """An operation that stays outside of kernels: a view of its operand's memory, or the place of its operands."""
        name = self.names[node.result.number] = f"%m{node.result.number}"
        operands = ", ".join(self._named(value) for value in node.operands)
        types = ", ".join(value.type_text for value in node.operands)
        typed = f"{self._attributes(node)} : ({types}) -> {node.result.type_text}"
        self.lines.append(f'  {name} = "nova.{node.name}"({operands}) {typed} {node.location}')

    def _write(self, names, arguments, body: list[str], yields, anchor: str, location: str, held: str = "") -> None:
        """A kernel. `arguments`: (name outside, name inside, type); `yields`: (name inside, type)."""
        types, result_types = ", ".join(t for _, _, t in arguments), ", ".join(t for _, t in yields)
        self.lines += [
            f'  {", ".join(names)} = "nova.kernel"({", ".join(name for name, _, _ in arguments)}) ({{',
            f"  ^bb0({', '.join(f'{name}: {t}' for _, name, t in arguments)}):" if arguments else "  ^bb0:",
            *body,
            f'    "{TERMINATOR}"({", ".join(name for name, _ in yields)}) : ({result_types}) -> () {UNKNOWN}',
            f'  }}) {{anchor = "{anchor}"{held}}} : ({types}) -> ({result_types}) {location}',
        ]

    def _times(self, value: Value) -> int:
        """How many results of its kernel hold `value`: one per output and assign, or one for other kernels."""
        return self.leaving[value.number] or int(value.number in self.read_outside)

    def _operation(self, node: Node, inner: dict[int, str]) -> str:
        for result in node.results:
            inner[result.number] = f"%v{result.number}"
        left = ", ".join(inner[r.number] for r in node.results)
        operands = ", ".join(inner[v.number] for v in node.operands)
        types = ", ".join(v.type_text for v in node.operands)
        results = ", ".join(r.type_text for r in node.results)
        typed = f"{self._attributes(node)} : ({types}) -> ({results}) {node.location}"
        return f'    {left} = "nova.{node.name}"({operands}) {typed}'

    # --- names

    def _named(self, value: Value) -> str:
        """The name of a value outside of kernels, made by reshapes of memory where needed."""
        found = self.names.get(value.number)
        if found is None:
            node = value.node
            found = self.names[value.number] = self._reshape(self._named(node.operands[0]), node.operands[0], value)
        return found

    def _reshape(self, name: str, source: Value, target: Value) -> str:
        result = f"%r{len(self.lines)}"
        shape = "".join(f" {extent}," for extent in target.shape).removesuffix(",")
        attribute = f"array<i64:{shape}>" if target.shape else "array<i64>"
        types = f"({source.type_text}) -> {target.type_text}"
        self.lines.append(f'  {result} = "nova.reshape"({name}) {{shape = {attribute}}} : {types} {UNKNOWN}')
        return result

    def _attributes(self, node: Node) -> str:
        found = self.attributes.get(node.number)
        if found is None:
            held = node.op.attributes
            entries = ", ".join(f'"{name}" = {held[name]}' for name in held)
            found = self.attributes[node.number] = f"{{{entries}}}" if entries else ""
        return found


def _fused(body: list[Node]) -> str:
    lines = list(dict.fromkeys(node.location for node in body))
    known = [line for line in lines if line != UNKNOWN][:MAX_LINES]
    if not known:
        return UNKNOWN
    return known[0] if len(known) == 1 else f"loc(fused[{', '.join(line[4:-1] for line in known)}])"
