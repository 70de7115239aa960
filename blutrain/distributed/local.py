"""Collectives of one rank alone: copies. With it the same program runs with and without a launcher."""

from __future__ import annotations

from ..errors import message


class Done:
    """A request that was done at once."""

    def join(self) -> None:
        """Nothing to wait for."""

    def is_done(self) -> bool:
        return True


class LocalBackend:
    """What MPI and NCCL do among ranks, in a world of one."""

    few_blocks = 0

    def all_reduce(self, source, target, op: str, blocks: int = 0) -> Done:
        return self._copy(source, target)

    def broadcast(self, array, src: int) -> Done:
        return Done()

    def all_gather(self, source, target, blocks: int = 0) -> Done:
        return self._copy(source.reshape(target.shape), target)

    def reduce_scatter(self, source, target, op: str, blocks: int = 0) -> Done:
        return self._copy(source, target)

    def send(self, array, dst: int, tag: int) -> Done:
        raise ValueError(message("send", "there is no other rank"))

    def recv(self, array, src: int, tag: int) -> Done:
        raise ValueError(message("recv", "there is no other rank"))

    def close(self) -> None:
        """Nothing was opened."""

    @staticmethod
    def _copy(source, target) -> Done:
        if source is not target:
            target[...] = source
        return Done()


class Alone:
    """The watchdog of a world of one."""

    def enter(self, name: str) -> None:
        """Nobody waits."""

    def enter_message(self, kind: str, name: str, peer: int) -> None:
        """Nobody is there."""

    def check(self, entry) -> None:
        """Nobody is missing."""
