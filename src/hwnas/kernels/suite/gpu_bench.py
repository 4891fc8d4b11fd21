"""Bench that compiles, checks and times an operator's configurations on the GPU of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.compile_ahead import Compiled
from hwnas.kernels.operator import Config, Operator, Sizes
from hwnas.kernels.resources import compile_ahead
from hwnas.kernels.suite.timer import CallTimer, GpuTimer, Times, done
from hwnas.kernels.suite.tolerance import exact_outputs, worst_error
from hwnas.kernels.tuning.trial import Footprint, footprint, key_of

__all__ = ["GpuBench"]

_RUNS = 30
_READY = 8  # configurations that are kept ready to be timed again


class GpuBench:
    """Bench of an operator with random inputs of some sizes, on a GPU.

    Args:
        operator: Operator to compile, check and time.
        sizes: Sizes of the inputs.
        dtype: Type of the first input.
        gpu: Properties of the GPU `device`.
        timer: Timer of the kernels.
        device: Device of the inputs.
        seed: Seed of the values of the inputs.
    """

    def __init__(
        self,
        operator: Operator,
        sizes: Sizes,
        dtype: torch.dtype,
        gpu: Accelerator,
        timer: GpuTimer,
        device: torch.device,
        seed: int = 0,
    ) -> None:
        self._operator, self._gpu, self._timer = operator, gpu, timer
        generator = torch.Generator().manual_seed(seed)
        self.inputs = operator.example(sizes, dtype, generator, device)
        self._truth = exact_outputs(operator.reference, self.inputs)
        self._timers: dict[Any, CallTimer] = {}

    def footprint(self, config: Config) -> Footprint:
        """Return the number of programs and the memory traffic of a configuration."""
        return footprint(self._operator, self.inputs, config, self._gpu)

    def compile(self, configs: Sequence[Config]) -> list[Compiled]:
        """Compile configurations in parallel; a later launch finds them in Triton's cache."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(self._compiled, configs))

    def error(self, config: Config) -> float:
        """Return the worst error of all outputs, compared with the reference in float64.

        Outputs are filled with NaN or the least integer beforehand. Otherwise values that a kernel
        leaves out could be right by chance, because an earlier kernel left them in that memory.
        """
        outputs = self._operator.outputs(self.inputs)
        for output in outputs:
            output.fill_(torch.nan if output.is_floating_point() else torch.iinfo(output.dtype).min)
        done(self._started(config, outputs))
        return max(map(worst_error, outputs, self._truth))

    def times_us(self, config: Config, runs: int) -> Sequence[float]:
        """Return the times of some runs of a configuration, in microseconds."""
        key = key_of(config)
        if key not in self._timers:
            if len(self._timers) == _READY:
                del self._timers[next(iter(self._timers))]
            run = self._started(config, self._operator.outputs(self.inputs))
            self._timers[key] = done(partial(self._timer.prepare, run))
        return done(partial(self._timers[key], runs))

    def rival(self, run: Callable[[], object]) -> Times:
        """Time another implementation of the operator in the same way."""
        return Times.of(self._timer.prepare(run)(_RUNS))

    def _compiled(self, config: Config) -> Compiled:
        launches = self._operator.launches(self.inputs, self._operator.outputs(self.inputs), config)
        try:
            return tuple(compile_ahead(launch, self._gpu) for launch in launches)
        except DeviceError as error:
            return " ".join(str(error).split())

    def _started(self, config: Config, outputs: tuple[Tensor, ...]) -> Callable[[], None]:
        launches = self._operator.launches(self.inputs, outputs, config)

        def run() -> None:
            for launch in launches:
                launch.run()

        return run
