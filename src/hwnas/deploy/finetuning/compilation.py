"""Compilation of an update scheme to a program, from the joint graph of the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hwnas.deploy.finetuning.joint_graph import JointGraph
from hwnas.deploy.finetuning.keeping import KeptValues
from hwnas.deploy.finetuning.liveness import peak_bytes, with_frees
from hwnas.deploy.finetuning.memory import StepMemory
from hwnas.deploy.finetuning.program import ProgramStep, TrainingProgram
from hwnas.deploy.finetuning.scheme import TrainedTensor, UpdateScheme
from hwnas.errors import ConfigError

__all__ = ["ACTIVATION_BITS", "compile_scheme"]

ACTIVATION_BITS = (32, 4)
"""Possible numbers of bits of an activation that is kept for the backward pass."""


def compile_scheme(
    graph: JointGraph, scheme: UpdateScheme, activation_bits: int = 32
) -> TrainingProgram:
    """Return the program that computes the loss and the gradients of a scheme.

    Args:
        graph: Joint graph of the network.
        scheme: Layers to train.
        activation_bits: Bits of an activation that is kept, one of `ACTIVATION_BITS`. Masks, and
            rectified values of which only the sign counts, take one bit always.

    Raises:
        ConfigError: The scheme names a layer that the network does not have, or trains nothing; or
            the bits are wrong.
    """
    if activation_bits not in ACTIVATION_BITS:
        raise ConfigError(f"activation_bits is {activation_bits}; expected 32 or 4")
    tensors = {each: graph.gradients[_key(each)] for each in scheme.tensors(graph.layers)}
    if not tensors:
        raise ConfigError("the scheme trains nothing; name a layer with a weight or a bias")
    live = _live(graph, [graph.loss, *tensors.values()])
    kept = KeptValues.of(graph, *_phases(graph, live), activation_bits)
    forward = [*kept.forward_steps()]
    stay = {*graph.given, *graph.constants, graph.loss, *tensors.values()}
    steps = with_frees([*forward, *kept.backward_steps()], stay)
    first, rest = steps[: len(forward)], steps[len(forward) :]
    memory = _memory(graph, steps, kept)
    return TrainingProgram(graph, tensors, tuple(first), tuple(rest), kept.saved, memory)


def _memory(graph: JointGraph, steps: Sequence[ProgramStep], kept: KeptValues) -> StepMemory:
    """Return the memory of a step; images and targets are there all the time."""
    inputs = {p for n in (graph.images, graph.targets) for p in graph.operators[n].storages}
    uncounted = inputs | graph.fixed_storages
    sizes = {p: size for p, size in graph.storage_bytes.items() if p not in uncounted}
    always = sum(graph.storage_bytes[piece] for piece in inputs)
    saved = sum(each.memory_bytes for each in kept.saved)
    return StepMemory(saved, peak_bytes(steps, {**sizes, **kept.sizes}, always))


def _key(tensor: TrainedTensor) -> tuple[str, int]:
    is_whole = tensor.width in (0, tensor.layer.widths[-1])
    return tensor.parameter, 0 if is_whole else tensor.width


def _live(graph: JointGraph, wanted: Iterable[int]) -> list[int]:
    """Return the operators that wanted values depend on, and these, in order."""
    found: set[int] = set()
    waiting = [*wanted]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += graph.operators[number].reads
    return sorted(number for number in found if graph.operators[number].function is not None)


def _phases(graph: JointGraph, live: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the operators before and after the loss, each in order.

    A mask that depends on no gradient belongs to the first. It is computed as soon as its inputs
    are there, since it is smaller than they are.
    """
    place: dict[int, int] = {}  # of a forward operator: after which one it runs
    backward = []
    for number in live:
        each = graph.operators[number]
        reads = [n for n in each.reads if graph.operators[n].function is not None]
        if each.is_forward:
            place[number] = number
        elif each.kind == "mask" and all(n in place for n in reads):
            place[number] = max((place[n] for n in reads), default=number)
        else:
            backward.append(number)
    return sorted(place, key=lambda number: (place[number], number)), backward
