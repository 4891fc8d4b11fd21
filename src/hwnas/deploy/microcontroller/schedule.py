"""Order in which the steps of an integer network run: row by row where that saves memory.

A stream is a chain of steps that runs once for each row of its output, so that the tensors between
them never exist as a whole. A row is one token, one query of an attention, or one row of a map.
Between convolutions, a stream keeps the last rows that the next kernel needs. So the wide maps
inside inverted bottlenecks, the hidden values of perceptrons and the attention weights take a few
rows of memory each. Nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hwnas.deploy.microcontroller.convolution import MapWindow, window_of
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep
from hwnas.deploy.microcontroller.operator import RowPart

__all__ = ["Stream", "StreamStage", "scheduled"]

Readers = Mapping[int, set[int]]


@dataclass(frozen=True, eq=False)
class StreamStage:
    """Steps of a stream that compute the same rows.

    Attributes:
        window: Step whose operator moves a window over a map; None if there is none.
        others: Steps that follow, which work on rows alone.
        rows: Number of rows of the output; 1 for a step that works on whole tensors.
    """

    window: IntegerStep | None
    others: tuple[IntegerStep, ...]
    rows: int

    @property
    def steps(self) -> tuple[IntegerStep, ...]:
        """All steps in order."""
        return (*([] if self.window is None else [self.window]), *self.others)

    @property
    def output(self) -> int:
        """Tensor that the last step writes."""
        return self.steps[-1].output

    @property
    def kernel(self) -> MapWindow | None:
        """Window of the step `window`."""
        return None if self.window is None else window_of(self.window.operator)

    def part(self, step: IntegerStep) -> RowPart:
        """Return what one of the other steps computes of one row."""
        found = step.operator.part(self.rows)
        assert found is not None
        return found

    def reads(self, tensor: int) -> list[tuple[int, int]]:
        """Return how the other steps read a tensor, as in `RowPart.reads`."""
        return [
            self.part(step).reads[i]
            for step in self.others
            for i, each in enumerate(step.inputs)
            if each == tensor
        ]


@dataclass(frozen=True, eq=False)
class Stream:
    """Steps that run together, row by row.

    Attributes:
        stages: Stages; each but the first begins with a window over the rows of the one before.
    """

    stages: tuple[StreamStage, ...]

    @classmethod
    def of(cls, step: IntegerStep) -> Stream:
        """Create a stream of one step that works on whole tensors."""
        return cls((StreamStage(None, (step,), 1),))

    @property
    def steps(self) -> tuple[IntegerStep, ...]:
        """All steps in order."""
        return tuple(step for stage in self.stages for step in stage.steps)

    @property
    def output(self) -> int:
        """Tensor that the last step writes."""
        return self.stages[-1].output

    @property
    def rows(self) -> int:
        """Number of rows of the output."""
        return self.stages[-1].rows

    def kept_rows(self, number: int) -> int:
        """Return the number of rows that are kept of the output of a stage, but the last one."""
        kernel = self.stages[number + 1].kernel
        assert kernel is not None
        return kernel.span

    def tensor_bytes(self, network: IntegerNetwork) -> dict[int, int]:
        """Return the memory that each output of a step takes: rows, or all of the last one."""
        sizes = {
            step.output: network.tensors[step.output].size // stage.rows
            for stage in self.stages
            for step in stage.steps
        }
        for number, stage in enumerate(self.stages[:-1]):
            sizes[stage.output] *= self.kept_rows(number)
        return sizes | {self.output: network.tensors[self.output].size}

    def may_replace(self, network: IntegerNetwork, tensor: int) -> bool:
        """Return whether the output may stand where an input stood that nothing reads later.

        A row of the output is written when all steps of that row have read the input, so it must
        not reach into rows of the input that are still to be read.
        """
        for stage in self.stages:
            if stage.window is not None and tensor in stage.window.inputs:
                return False
            if any(step.operator.part(stage.rows) is None for step in stage.others):
                return False
            if not all(divisor == 1 and width for divisor, width in stage.reads(tensor)):
                return False
        size, of_output = network.tensors[tensor].size, network.tensors[self.output].size
        last = self.stages[-1].steps[-1]
        if tensor in last.inputs and not (last.operator.in_place and size == of_output):
            return False
        width = of_output // self.rows
        reading = [k for k, stage in enumerate(self.stages) if stage.reads(tensor)]
        for y in range(self.rows):
            done = self._rows_done(y)
            for k in reading:
                if (y + 1) * width > done[k] * (size // self.stages[k].rows):
                    return False
        return True

    def _rows_done(self, y: int) -> list[int]:
        """Return how many rows of each stage are computed once row y of the output is."""
        done = [y + 1]
        for stage in reversed(self.stages[1:]):
            kernel = stage.kernel
            assert kernel is not None
            needed = (done[0] - 1) * kernel.stride[0] - kernel.padding[0] + kernel.span
            done.insert(0, min(kernel.size[0], max(0, needed)))
        return done


def scheduled(network: IntegerNetwork, by_rows: bool = False) -> list[Stream]:
    """Return streams that together run all steps in order, with the least memory in use at once.

    Of streams that need the same, the longer ones are taken. A tensor that leaves its stream takes
    its memory however the other steps are divided, so the best division of the last steps does not
    depend on that of the first ones.

    Args:
        network: Network.
        by_rows: Whether the rows of the image are given one by one. Then the first stage of the
            first stream has the rows of the image, which takes no memory.
    """
    readers = _readers(network)
    end = len(network.steps)
    best: dict[int, tuple[tuple[int, int], Stream | None]] = {end: ((0, 0), None)}
    for start in reversed(range(end)):
        found: tuple[tuple[int, int], Stream] | None = None
        streams = (
            _of_image_rows(network, readers)
            if by_rows and start == 0
            else _streams(network.steps, readers, start)
        )
        for stream in streams:
            (peak, number), _ = best[start + len(stream.steps)]
            cost = max(peak, _in_use(network, readers, start, stream, by_rows)), number + 1
            if found is None or cost < found[0]:
                found = cost, stream
        assert found is not None
        best[start] = found
    chosen: list[Stream] = []
    at = 0
    while (following := best[at][1]) is not None:
        chosen.append(following)
        at += len(following.steps)
    return chosen


def _of_image_rows(network: IntegerNetwork, readers: Readers) -> Iterator[Stream]:
    """Yield the streams that may begin the network and whose first stage has the image's rows."""
    height, first = network.tensors[0].shape[0], network.steps[0]
    yield Stream((StreamStage(None, (first,), height),))
    for stream in _streams(network.steps, readers, 0, height):
        if stream.stages[0].window is None and stream.stages[0].rows == height:
            yield stream


def _in_use(
    network: IntegerNetwork, readers: Readers, start: int, stream: Stream, by_rows: bool
) -> int:
    """Return the bytes in use while a stream runs that begins at a step."""
    end = start + len(stream.steps)
    written = {step.output for step in network.steps[:start]}
    if not by_rows:
        written.add(0)
    alive = {i: max(readers.get(i, {-1})) for i in written}
    alive = {i: last for i, last in alive.items() if last >= start}
    sizes = stream.tensor_bytes(network)
    replaced = any(last < end and stream.may_replace(network, i) for i, last in alive.items())
    if replaced:
        sizes.pop(stream.output)
    return sum(network.tensors[i].size for i in alive) + sum(sizes.values())


def _readers(network: IntegerNetwork) -> dict[int, set[int]]:
    """Return the steps that read each tensor; the number of steps for the output of the network."""
    readers: dict[int, set[int]] = {network.output: {len(network.steps)}}
    for at, step in enumerate(network.steps):
        for tensor in step.inputs:
            readers.setdefault(tensor, set()).add(at)
    return readers


def _streams(
    steps: Sequence[IntegerStep], readers: Readers, start: int, height: int = 1
) -> Iterator[Stream]:
    """Yield the streams that may begin at a step.

    Args:
        steps: All steps.
        readers: Steps that read each tensor.
        start: First step.
        height: A further number of rows into which the outputs may be divided.
    """
    step = steps[start]
    if window_of(step.operator) is not None:
        yield from _from_window(steps, readers, start, ())
        return
    yield Stream.of(step)
    for rows in _row_counts(steps, start, height):
        if step.operator.part(rows) is None:
            continue
        for end in range(start + 2, len(steps) + 1):
            if not _continues(steps, start, end - 1, rows):
                break
            if _closed(steps, readers, start, end):
                yield Stream((StreamStage(None, tuple(steps[start:end]), rows),))
    middle = next(
        (at for at in range(start, len(steps)) if window_of(steps[at].operator) is not None), None
    )
    window = None if middle is None else window_of(steps[middle].operator)
    if middle is None or window is None or step.operator.part(window.size[0]) is None:
        return
    height = window.size[0]
    if all(_continues(steps, start, at, height) for at in range(start + 1, middle)) and _closed(
        steps, readers, start, middle, middle
    ):
        first = StreamStage(None, tuple(steps[start:middle]), height)
        yield from _from_window(steps, readers, middle, (first,))


def _from_window(
    steps: Sequence[IntegerStep], readers: Readers, middle: int, before: tuple[StreamStage, ...]
) -> Iterator[Stream]:
    """Yield the streams whose stages go on with a window."""
    window = window_of(steps[middle].operator)
    assert window is not None
    rows = window.output_size[0]
    for end in range(middle + 1, len(steps) + 1):
        if end > middle + 1 and not _continues(steps, middle, end - 1, rows):
            return
        stage = StreamStage(steps[middle], tuple(steps[middle + 1 : end]), rows)
        if _closed(steps, readers, middle, end):
            yield Stream((*before, stage))
        following = window_of(steps[end].operator) if end < len(steps) else None
        if following is not None:
            if following.size[0] == rows and _closed(steps, readers, middle, end, end):
                yield from _from_window(steps, readers, end, (*before, stage))
            return


def _row_counts(steps: Sequence[IntegerStep], start: int, height: int) -> list[int]:
    """Return the numbers of rows into which outputs of a step and the next may be divided."""
    counts = {step.operator.rows_possible for step in steps[start : start + 2]}
    return sorted((counts | {height}) - {1})


def _continues(steps: Sequence[IntegerStep], start: int, at: int, rows: int) -> bool:
    """Return whether a step works on rows that earlier ones from ``start`` on have written."""
    part = steps[at].operator.part(rows)
    made = {step.output for step in steps[start:at]}
    if part is None or not set(steps[at].inputs) & made:
        return False
    reads = zip(steps[at].inputs, part.reads, strict=True)
    return all(divisor == 1 and width for i, (divisor, width) in reads if i in made)


def _closed(
    steps: Sequence[IntegerStep],
    readers: Readers,
    start: int,
    end: int,
    only: int | None = None,
) -> bool:
    """Return whether nothing outside reads what steps write, but the output of the last one.

    Args:
        steps: All steps.
        readers: Steps that read each tensor.
        start: First of the steps.
        end: One more than the last of them.
        only: The one step that may read the output of the last one; any step if None.
    """
    inside = set(range(start, end))
    inner = all(readers.get(step.output, set()) <= inside for step in steps[start : end - 1])
    last = readers.get(steps[end - 1].output, set())
    return inner and (only is None or last == {only})
