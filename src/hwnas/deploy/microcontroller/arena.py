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
        offsets: Place of each tensor that is not constant, in bytes.
        bytes: Size.
        largest_step: Name of a layer during which the most memory is in use.
        in_use_bytes: What is in use during that layer; no plan of the same streams can be smaller.
    """

    offsets: Mapping[int, int]
    bytes: int
    largest_step: str
    in_use_bytes: int


@dataclass
class _Block:
    """Memory of one or more tensors, of which each takes the place of the one before.

    Attributes:
        tensors: Tensors.
        size: Bytes.
        first: First step during which the memory is in use.
        last: Last such step.
    """

    tensors: list[int]
    size: int
    first: int
    last: int


def planned(network: IntegerNetwork, streams: Sequence[Stream]) -> Arena:
    """Return places of all tensors, such that none overlaps another one that is needed.

    A tensor that a stream reads or writes as a whole lives from the first step of the stream that
    writes it to the last step of the last one that reads it. The output of a stream stands where an
    input stood, if nothing reads that later and no row is written before all of it is read. Blocks
    are placed by decreasing size, each at the lowest free place (greedy by size; Pisarchyk and Lee,
    2020).
    """
    blocks = _blocks(network, streams)
    placed: list[tuple[_Block, int]] = []
    for block in sorted(blocks, key=lambda each: (-each.size, each.first)):
        offset = 0
        for other, start in sorted(placed, key=lambda each: each[1]):
            meets = other.first <= block.last and block.first <= other.last
            if meets and start < offset + block.size and offset < start + other.size:
                offset = _aligned(start + other.size)
        placed.append((block, offset))
    usage = [
        sum(_aligned(block.size) for block in blocks if block.first <= at <= block.last)
        for at in range(len(network.steps))
    ]
    most = max(range(len(usage)), key=usage.__getitem__)
    return Arena(
        {tensor: offset for block, offset in placed for tensor in block.tensors},
        max(_aligned(offset + block.size) for block, offset in placed),
        network.steps[most].layer,
        usage[most],
    )


def _blocks(network: IntegerNetwork, streams: Sequence[Stream]) -> list[_Block]:
    last = _last_reads(network, streams)
    blocks = {0: _Block([0], network.tensors[0].size, 0, last.get(0, 0))}
    for start, stream in _with_starts(streams):
        sizes = stream.tensor_bytes(network)
        for at, step in enumerate(stream.steps, start):
            tensor = step.output
            if tensor == stream.output:
                continue
            # The last step before a window writes rows that later ones of them read.
            kept = bool(stream.before) and step is stream.before[-1]
            end = start + len(stream.steps) - 1
            first, until = (start, end) if kept else (at, last.get(tensor, at))
            blocks[tensor] = _Block([tensor], sizes[tensor], first, until)
        tensor = stream.output
        until = max(last.get(tensor, 0), start + len(stream.steps) - 1)
        source = _replaced(network, stream, last, start, blocks)
        if source is None:
            blocks[tensor] = _Block([tensor], sizes[tensor], start, until)
        else:
            block = blocks[tensor] = blocks[source]
            block.tensors.append(tensor)
            block.size, block.last = max(block.size, sizes[tensor]), until
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
        if dies and blocks[tensor].tensors[-1] == tensor and stream.may_replace(network, tensor):
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
