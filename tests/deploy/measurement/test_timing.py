"""Timing, on simulated clocks and on the real ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hwnas.deploy import Export, Target, TimingSettings, measure
from hwnas.deploy.measurement.latency_timer import LatencyTimer, interleave
from hwnas.deploy.measurement.measurement import TimedNetwork
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.deploy.measurement.timing import measure_together
from hwnas.errors import ArtifactError, ConfigError, DeviceError

ONE = Target.parse("cpu-onnxruntime-fp32-b1-t1")
SETTINGS = TimingSettings(warmup=1, rounds=10, round_ms=4.0, retries=2)


class Machine:
    """Simulated processor with a CPU clock and a wall clock.

    ``slowdown`` delays only the wall clock, like other processes on the same machine;
    ``neighbours`` delays both clocks, like other virtual machines on the same hardware.
    """

    def __init__(
        self, slowdown: Callable[[int], float], neighbours: Callable[[int], float] = lambda _: 1.0
    ) -> None:
        self.cpu = self.wall = 0.0
        self.runs = 0
        self._slowdown, self._neighbours = slowdown, neighbours

    def timer(
        self,
        ms: float,
        threads: int = 1,
        parallel: float = 1.0,
        reference: LatencyTimer | None = None,
        usual_ms: float | None = None,
    ) -> LatencyTimer:
        def run() -> None:
            seconds = ms / 1e3 * self._neighbours(self.runs)
            self.cpu += seconds
            self.wall += seconds / parallel * self._slowdown(self.runs)
            self.runs += 1

        clocks = (lambda: self.cpu, lambda: self.wall)
        return LatencyTimer(run, SETTINGS, *clocks, threads == 1, reference, usual_ms)


def test_interleave_takes_only_the_wanted_rounds_on_a_quiet_machine() -> None:
    machine = Machine(lambda _: 1.0)
    reference, network = machine.timer(1.0), machine.timer(2.0)
    before = machine.runs
    shares: list[float] = []
    interleave([reference], [network], SETTINGS.retries, shares.append)
    assert machine.runs - before == 10 * 4 + 10 * 2  # rounds of 4 ms
    assert network.clean == network.wanted == 10
    assert network.quantiles("cpu").p50 == pytest.approx(2.0)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_interleave_repeats_disturbed_rounds() -> None:
    machine = Machine(lambda run: 3.0 if 60 <= run < 90 else 1.0)
    reference, network = machine.timer(1.0), machine.timer(2.0)
    interleave([reference], [network], SETTINGS.retries)
    assert network.clean == network.wanted
    assert network.quantiles("wall").p80 == pytest.approx(2.0)


def test_interleave_repeats_rounds_with_a_slow_reference_model() -> None:
    machine = Machine(lambda _: 1.0, neighbours=lambda run: 1.4 if 20 <= run < 60 else 1.0)
    reference = machine.timer(1.0)
    network = machine.timer(2.0, reference=reference)
    interleave([], [network], SETTINGS.retries)
    assert network.clean == network.wanted
    assert network.quantiles("cpu").p80 == pytest.approx(2.0)
    assert network.anchor_ms == pytest.approx(1.0)


def test_interleave_reports_permanent_load_by_other_processes() -> None:
    machine = Machine(lambda _: 1.0, neighbours=lambda run: 1.0 + 0.2 * (run // 6 % 3))
    reference = machine.timer(1.0)
    network = machine.timer(2.0, reference=reference)
    interleave([], [network], SETTINGS.retries)
    assert network.clean < network.wanted


def test_interleave_waits_for_a_quiet_machine_with_patience() -> None:
    def busy(run: int) -> float:
        return 1.0 + 0.2 * (run // 6 % 3) if run < 400 else 1.0

    machines = [Machine(lambda _: 1.0, neighbours=busy) for _ in range(2)]
    networks = [machine.timer(2.0, reference=machine.timer(1.0)) for machine in machines]
    for patience_s, machine, network in zip((0.0, 2.0), machines, networks, strict=True):
        clock = partial(getattr, machine, "wall")
        interleave([], [network], SETTINGS.retries, patience_s=patience_s, clock=clock)
    assert networks[0].clean < networks[0].wanted
    assert networks[1].clean == networks[1].wanted
    assert networks[1].quantiles("cpu").p80 == pytest.approx(2.0)


def test_interleave_accepts_only_rounds_near_the_usual_latency() -> None:
    machine = Machine(lambda _: 1.0, neighbours=lambda run: 1.5 if run < 40 else 1.0)
    network = machine.timer(2.0, usual_ms=2.0)
    interleave([], [network], SETTINGS.retries)
    assert network.clean == network.wanted
    assert network.quantiles("cpu").p80 == pytest.approx(2.0)
    slow = machine.timer(2.0, usual_ms=1.5)
    interleave([], [slow], SETTINGS.retries)
    assert slow.clean == 0


def test_interleave_reports_disturbance_and_keeps_the_cpu_time_right() -> None:
    machine = Machine(lambda _: 2.0)
    reference, network = machine.timer(1.0), machine.timer(2.0)
    interleave([reference], [network], SETTINGS.retries)
    assert network.clean == 0
    assert network.quantiles("cpu").p50 == pytest.approx(2.0)
    assert network.quantiles("wall").p50 == pytest.approx(4.0)


def test_interleave_judges_multithreaded_rounds_by_the_best_round() -> None:
    machine = Machine(lambda run: 2.0 if run % 40 < 10 else 1.0)
    reference = machine.timer(1.0, threads=2, parallel=1.6)
    network = machine.timer(8.0, threads=2, parallel=1.6)
    interleave([reference], [network], SETTINGS.retries)
    assert network.clean == network.wanted
    assert network.quantiles("wall").p80 == pytest.approx(5.0)


def test_interleave_retries_slow_networks_less_often() -> None:
    machine = Machine(lambda _: 2.0)
    reference, slow = machine.timer(1.0), machine.timer(2_000.0)
    before = machine.cpu
    interleave([reference], [slow], SETTINGS.retries)
    assert machine.cpu - before == pytest.approx(2.0 * 3 * 5 + 0.002 * 3 * 10)


def test_latency_timer_takes_fewer_rounds_of_slow_networks() -> None:
    machine = Machine(lambda _: 1.0)
    assert machine.timer(2_000.0).wanted == 5
    assert machine.timer(0.001).wanted == SETTINGS.rounds


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"warmup": 0}, {"max_slowdown": 1.0}, {"round_ms": 0}]
)
def test_timing_settings_refuse_impossible_values(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TimingSettings(**options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_measure_gives_a_complete_measurement_of_each_network(
    exported: Export, tmp_path: Path
) -> None:
    write_reference_model(tmp_path / "reference.onnx")
    shares: list[float] = []
    models = {"network": exported.path, "reference": tmp_path / "reference.onnx"}
    found = measure(models, ONE, TimingSettings(rounds=15), shares.append)
    assert list(found) == ["network", "reference"]
    network, reference = found["network"], found["reference"]
    assert (network.target, network.clock, network.n) == (ONE.name, "cpu", 15)
    assert network.latency_ms > 0
    assert network.settings["graph_optimization_level"] == "ORT_ENABLE_ALL"
    assert "onnxruntime" in network.versions
    assert reference.latency_ms == pytest.approx(reference.anchor_ms, rel=0.3)
    assert shares[-1] == 1.0


@pytest.mark.slow
def test_measure_follows_batch_and_threads_of_the_target(exported: Export) -> None:
    models, settings = {"network": exported.path}, TimingSettings(rounds=10)
    one = measure(models, ONE, settings)["network"]
    many = measure(models, Target.parse("cpu-onnxruntime-fp32-b32-t1"), settings)["network"]
    assert many.latency_ms > 3 * one.latency_ms
    wall = measure(models, Target.parse("cpu-onnxruntime-fp32-b1-t2"), settings)["network"]
    assert wall.clock == "wall"
    assert wall.latency_ms == wall.wall_ms.p50


@pytest.mark.slow
def test_measure_together_has_a_reference_model_for_each_target(exported: Export) -> None:
    targets = [
        ONE,
        Target.parse("cpu-onnxruntime-int8-b8-t1"),
        Target.parse("cpu-pytorch-fp32-b1-t1"),
    ]
    subjects = {target.name: TimedNetwork(exported.path, target) for target in targets}
    found = measure_together(subjects, TimingSettings(rounds=5))
    assert [found[name].target for name in subjects] == list(subjects)
    references = {measurement.anchor_ms for measurement in found.values()}
    assert len(references) == len(targets)  # each target has its own reference model


def test_measure_accepts_an_empty_dictionary() -> None:
    assert measure({}, ONE, TimingSettings(rounds=1)) == {}


def test_measure_refuses_damaged_files_and_too_many_threads(
    tmp_path: Path, exported: Export
) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(exported.path.read_bytes()[:5000])
    with pytest.raises(ArtifactError, match=r"damaged\.onnx"):
        measure({"damaged": damaged}, ONE)
    with pytest.raises(DeviceError, match="999999 threads"):
        measure({"network": exported.path}, Target.parse("cpu-onnxruntime-fp32-b1-t999999"))
