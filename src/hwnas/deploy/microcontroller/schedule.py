"""Order in which the steps of an integer network run: row by row where that saves memory.

A stream is a chain of steps that runs once for each row of its output, so that the tensors between
them never exist as a whole. A row is one token, one query of an attention, or one row of a map.
Around a convolution, a stream keeps the last rows of the input that the kernel needs. So the wide
maps inside an inverted bottleneck, the hidden values of a perceptron and the attention weights take
a few rows of memory each. Nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hwnas.deploy.microcontroller.convolution import MapWindow, window_of
from hwnas.deploy.microcontroller.elementwise import IntegerCopy
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep
from hwnas.deploy.microcontroller.operator import IntegerOperator, RowPart

__all__ = ["Stream", "scheduled", "with_copies"]


@dataclass(frozen=True, eq=False)
class Stream:
    """Steps that run together, row by row.

    Attributes:
        before: Steps for each row of the input of the window; none if it reads a whole map.
        window: Step whose operator moves a window over a map, if there is one.
        after: Steps for each row of the output.
        rows: Number of rows of the output; 1 for a step that works on whole tensors.
    """

    before: tuple[IntegerStep, ...]
    window: IntegerStep | None
    after: tuple[IntegerStep, ...]
    rows: int

    @property
    def steps(self) -> tuple[IntegerStep, ...]:
        """All steps in order."""
        return *self.before, *([] if self.window is None else [self.window]), *self.after

    @property
    def output(self) -> int:
        """Tensor that the last step writes."""
        return self.steps[-1].output

    @property
    def kernel(self) -> MapWindow | None:
        """Window of the step `window`."""
        return None if self.window is None else window_of(self.window.operator)

    @property
    def kept_rows(self) -> int:
        """Number of rows that are kept of the input of the window."""
        kernel = self.kernel
        return 0 if kernel is None else (kernel.kernel_size[0] - 1) * kernel.dilation[0] + 1

    def rows_of(self, step: IntegerStep) -> int:
        """Return the number of rows in which a step's output is computed."""
        kernel = self.kernel
        return kernel.size[0] if kernel is not None and step in self.before else self.rows

    def part(self, step: IntegerStep) -> RowPart:
        """Return what one step computes of one row."""
        found = step.operator.part(self.rows_of(step))
        assert found is not None
        return found

    def tensor_bytes(self, network: IntegerNetwork) -> dict[int, int]:
        """Return the memory that each output of a step takes: rows, or all of the last one."""
        sizes = {
            step.output: network.tensors[step.output].size // self.rows_of(step)
            for step in self.steps
        }
        if self.before:
            sizes[self.before[-1].output] *= self.kept_rows
        return sizes | {self.output: network.tensors[self.output].size}

    def may_replace(self, network: IntegerNetwork, tensor: int) -> bool:
        """Return whether the output may stand where an input stood that nothing reads later.

        A row of the output is written when all steps of that row have read the input, so it must
        not reach into rows of the input that are still to be read.
        """
        if any(
            step.operator.part(self.rows_of(step)) is None for step in (*self.before, *self.after)
        ):
            return False
        before, after = (
            [self._read_at(step, tensor) for step in steps if tensor in step.inputs]
            for steps in (self.before, self.after)
        )
        if self.window is not None and tensor in self.window.inputs:
            return False
        if not all(divisor == 1 and width for reads in before + after for divisor, width in reads):
            return False
        last, width = self.steps[-1], network.tensors[self.output].size // self.rows
        if tensor in last.inputs and not last.operator.in_place:
            return False
        size = network.tensors[tensor].size
        if after and size != network.tensors[self.output].size:
            return False
        kernel = self.kernel
        if not before or kernel is None:
            return size == network.tensors[self.output].size
        row = size // kernel.size[0]
        for y in range(self.rows):
            first = y * kernel.stride[0] - kernel.padding[0]
            consumed = min(kernel.size[0], max(0, first + self.kept_rows))
            if (y + 1) * width > consumed * row:
                return False
        return True

    def _read_at(self, step: IntegerStep, tensor: int) -> list[tuple[int, int]]:
        reads = self.part(step).reads
        return [reads[i] for i, each in enumerate(step.inputs) if each == tensor]


def with_copies(network: IntegerNetwork) -> IntegerNetwork:
    """Return a network whose windows may write over their input, as they copy the rows they need.

    A copy is added before a window that reads a map which nothing reads later, if the output could
    stand in its place.
    """
    readers = _readers(network)
    makers = {step.output: step.operator for step in network.steps}
    tensors, steps = list(network.tensors), list[IntegerStep]()
    for at, step in enumerate(network.steps):
        window = window_of(step.operator)
        source = step.inputs[0]
        if window is not None and readers[source] == {at} and not _by_row(makers, source, window):
            tensors.append(tensors[source])
            number = len(tensors) - 1
            copy = IntegerStep(IntegerCopy(tensors[source].size), (source,), number, step.layer)
            reading = replace(step, inputs=(number,))
            trial = replace(network, tensors=tensors)
            stream = Stream((copy,), reading, (), window.output_size[0])
            if stream.may_replace(trial, source):
                steps += [copy, reading]
                continue
        steps.append(step)
    return replace(network, tensors=tensors, steps=steps)


def _by_row(makers: Mapping[int, IntegerOperator], tensor: int, window: MapWindow) -> bool:
    """Return whether the rows of a map can be made one by one as a window needs them."""
    return tensor in makers and makers[tensor].part(window.size[0]) is not None


def scheduled(network: IntegerNetwork) -> list[Stream]:
    """Return streams that together run all steps in order, with the least memory in use at once.

    Of streams that need the same, the longer ones are taken. A tensor that leaves its stream takes
    its memory however the other steps are divided, so the best division of the last steps does not
    depend on that of the first ones.
    """
    readers = _readers(network)
    end = len(network.steps)
    best: dict[int, tuple[tuple[int, int], Stream | None]] = {end: ((0, 0), None)}
    for start in reversed(range(end)):
        found: tuple[tuple[int, int], Stream] | None = None
        for stream in _streams(network, readers, start):
            (peak, number), _ = best[start + len(stream.steps)]
            cost = max(peak, _in_use(network, readers, start, stream)), number + 1
            if found is None or cost < found[0]:
                found = cost, stream
        assert found is not None
        best[start] = found
    streams: list[Stream] = []
    at = 0
    while (following := best[at][1]) is not None:
        streams.append(following)
        at += len(following.steps)
    return streams


def _in_use(
    network: IntegerNetwork, readers: dict[int, set[int]], start: int, stream: Stream
) -> int:
    """Return the bytes in use while a stream runs that begins at a step."""
    end = start + len(stream.steps)
    written = {0, *(step.output for step in network.steps[:start])}
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


def _streams(network: IntegerNetwork, readers: dict[int, set[int]], start: int) -> Iterator[Stream]:
    """Yield the streams that may begin at a step."""
    steps = network.steps
    step = steps[start]
    window = window_of(step.operator)
    if window is None:
        yield Stream((), None, (step,), 1)
    else:
        yield Stream((), step, (), window.output_size[0])
    for rows in _row_counts(steps, start):
        if step.operator.part(rows) is None:
            continue
        for end in range(start + 2, len(steps) + 1):
            if not _continues(steps, start, end - 1, rows):
                break
            if _closed(steps, readers, start, end):
                yield Stream((), None, tuple(steps[start:end]), rows)
    for middle in range(start, len(steps)):
        window = window_of(steps[middle].operator)
        if window is not None:
            yield from _around(steps, readers, start, middle, window)
            break


def _around(
    steps: Sequence[IntegerStep],
    readers: dict[int, set[int]],
    start: int,
    middle: int,
    window: MapWindow,
) -> Iterator[Stream]:
    """Yield the streams from a step on around a window."""
    before = tuple(steps[start:middle])
    height, rows = window.size[0], window.output_size[0]
    if before:
        follows = all(_continues(steps, start, at, height) for at in range(start + 1, middle))
        inside = _closed(steps, readers, start, middle, middle)
        if steps[start].operator.part(height) is None or not (follows and inside):
            return
    for end in range(middle + 1, len(steps) + 1):
        if end > middle + 1 and not _continues(steps, middle, end - 1, rows):
            return
        if _closed(steps, readers, middle, end):
            yield Stream(before, steps[middle], tuple(steps[middle + 1 : end]), rows)


def _row_counts(steps: Sequence[IntegerStep], start: int) -> list[int]:
    """Return the numbers of rows into which outputs of a step and the next may be divided."""
    counts = {step.operator.rows_possible for step in steps[start : start + 2]}
    return sorted(counts - {1})


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
    readers: dict[int, set[int]],
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
