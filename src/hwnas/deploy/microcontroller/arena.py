"""Plan of one static memory for all activations of an integer network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.schedule import Stream

__all__ = ["Arena", "planned"]

_ALIGNMENT = 4


@dataclass(frozen=True)
class Arena:
    """Memory for activations.

    Attributes:
        offsets: Place of each tensor that is not constant, in bytes; the image has none if its rows
            are given one by one.
        bytes: Size.
        largest_step: Name of a layer during which the most memory is in use.
        in_use_bytes: What is in use during that layer; no plan of the same streams can be smaller.
    """

    offsets: Mapping[int, int]
    bytes: int
    largest_step: str
    in_use_bytes: int


@dataclass(frozen=True)
class _Use:
    """Memory of one tensor, from the first to the last step during which it is in use."""

    tensor: int
    bytes: int
    first: int
    last: int

    def meets(self, other: _Use) -> bool:
        """Return whether both are in use during a step."""
        return self.first <= other.last and other.first <= self.last


@dataclass
class _Block:
    """Tensors at one place, of which each but the first stands where the one before stood."""

    uses: list[_Use]

    @property
    def bytes(self) -> int:
        """Bytes of the largest tensor."""
        return max(use.bytes for use in self.uses)


def planned(network: IntegerNetwork, streams: Sequence[Stream], by_rows: bool = False) -> Arena:
    """Return places of all tensors, such that none overlaps another one that is needed.

    A tensor that a stream reads or writes as a whole lives from the first step of the stream that
    writes it to the last step of the last one that reads it. The output of a stream stands where an
    input stood, if nothing reads that later and no row is written before all of it is read. Blocks
    are placed by decreasing size, each at the lowest free place (greedy by size; Pisarchyk and Lee,
    2020).

    Args:
        network: Network.
        streams: Streams that together run all steps.
        by_rows: Whether the rows of the image are given one by one, so that it has no place.
    """
    blocks = _blocks(network, streams, by_rows)
    placed: list[tuple[_Block, int]] = []
    for block in sorted(blocks, key=lambda each: (-each.bytes, each.uses[0].first)):
        offset = 0
        while (end := _end_of_conflict(block, offset, placed)) is not None:
            offset = _aligned(end)
        placed.append((block, offset))
    uses = [(use, offset) for block, offset in placed for use in block.uses]
    in_use = [sum(_in_use(each, at) for each in blocks) for at in range(len(network.steps))]
    most = max(range(len(in_use)), key=in_use.__getitem__)
    return Arena(
        {use.tensor: offset for use, offset in uses},
        max(_aligned(offset + use.bytes) for use, offset in uses),
        network.steps[most].layer,
        in_use[most],
    )


def _end_of_conflict(
    block: _Block, offset: int, placed: Sequence[tuple[_Block, int]]
) -> int | None:
    """Return where a tensor ends that overlaps a block at an offset; None if none does."""
    for other, start in placed:
        for mine in block.uses:
            for theirs in other.uses:
                apart = offset + mine.bytes <= start or start + theirs.bytes <= offset
                if mine.meets(theirs) and not apart:
                    return start + theirs.bytes
    return None


def _in_use(block: _Block, at: int) -> int:
    """Return the bytes of a block that are in use during a step."""
    return max((_aligned(u.bytes) for u in block.uses if u.first <= at <= u.last), default=0)


def _blocks(network: IntegerNetwork, streams: Sequence[Stream], by_rows: bool) -> list[_Block]:
    last = _last_reads(network, streams)
    blocks: dict[int, _Block] = {}
    if not by_rows:
        blocks[0] = _Block([_Use(0, network.tensors[0].size, 0, last.get(0, 0))])
    for start, stream in _with_starts(streams):
        sizes = stream.tensor_bytes(network)
        kept = {stage.output for stage in stream.stages[:-1]}
        end = start + len(stream.steps) - 1
        for at, step in enumerate(stream.steps, start):
            tensor = step.output
            if tensor == stream.output:
                continue
            # Rows that are kept for a window last as long as the stream.
            first, until = (start, end) if tensor in kept else (at, last.get(tensor, at))
            blocks[tensor] = _Block([_Use(tensor, sizes[tensor], first, until)])
        tensor = stream.output
        use = _Use(tensor, sizes[tensor], start, max(last.get(tensor, 0), end))
        source = _replaced(network, stream, last, start, blocks)
        if source is None:
            blocks[tensor] = _Block([use])
        else:
            blocks[source].uses.append(use)
            blocks[tensor] = blocks[source]
    return list({id(block): block for block in blocks.values()}.values())


def _last_reads(network: IntegerNetwork, streams: Sequence[Stream]) -> dict[int, int]:
    """Return the last step during which each tensor is in use, as a reader."""
    last: dict[int, int] = {}
    for start, stream in _with_starts(streams):
        made = {step.output for step in stream.steps}
        for at, step in enumerate(stream.steps, start):
            for tensor in step.inputs:
                last[tensor] = at if tensor in made else start + len(stream.steps) - 1
    last[network.output] = len(network.steps)
    return last


def _replaced(
    network: IntegerNetwork,
    stream: Stream,
    last: Mapping[int, int],
    start: int,
    blocks: Mapping[int, _Block],
) -> int | None:
    """Return an input in whose place the output of a stream can stand, if there is one."""
    made = {step.output for step in stream.steps}
    end = start + len(stream.steps) - 1
    for tensor in {tensor: None for step in stream.steps for tensor in step.inputs}:
        dies = tensor in blocks and tensor not in made and last[tensor] == end
        newest = dies and blocks[tensor].uses[-1].tensor == tensor
        if newest and stream.may_replace(network, tensor):
            return tensor
    return None


def _with_starts(streams: Sequence[Stream]) -> Iterator[tuple[int, Stream]]:
    """Yield streams with the number of their first step."""
    start = 0
    for stream in streams:
        yield start, stream
        start += len(stream.steps)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
