from dataclasses import replace

from hwnas.report import ObjectiveInfo
from hwnas.report.front import pareto_front


def traces(figure):
    return {trace.name.split(" (")[0]: trace for trace in figure.data}


def test_front_plot_joins_the_trials_of_the_front_by_a_step_line(report_data):
    front = traces(pareto_front(report_data))["Pareto front"]
    accuracy, latency = (objective.label for objective in report_data.objectives)
    expected = sorted(
        (t.values[latency], t.values[accuracy]) for t in report_data.trials if t.on_front
    )
    assert list(zip(front.x, front.y, strict=True)) == expected
    assert (front.line.shape, front.mode) == ("hv", "lines+markers")
    assert all(length > 0 for length in front.error_y.array)


def test_front_plot_labels_its_axes_and_draws_the_limit(report_data):
    figure = pareto_front(report_data)
    assert figure.layout.xaxis.title.text == "latency (ms, predicted) on cpu-onnxruntime-fp32-b1-t1"
    assert figure.layout.yaxis.title.text == "accuracy (evaluated)"
    assert [line.x0 for line in figure.layout.shapes] == [0.9]
    assert figure.layout.annotations[0].text == "limit 0.9 ms"


def test_front_plot_shows_each_candidate_once_and_random_search_if_it_ran(report_data):
    clouds = traces(pareto_front(report_data))
    shown = [len(clouds[name].x) for name in ("candidates", "Pareto front")]
    assert sum(shown) == len(report_data.trials)
    assert len(clouds["random search"].x) == len(report_data.baseline_trials)
    alone = traces(pareto_front(replace(report_data, baseline_trials=())))
    assert not [name for name in alone if "random" in name]


def test_front_plot_joins_a_finalist_to_its_measurement(report_data):
    finalist = report_data.finalists[0]
    trace = traces(pareto_front(report_data))["knee"]
    assert (trace.x[1], trace.y[1]) == (finalist.measurement.latency_ms, finalist.test.mean)
    unmeasured = replace(
        report_data, finalists=(replace(finalist, measurement=None, delivered={}),)
    )
    assert len(traces(pareto_front(unmeasured))["knee"].x) == 1


def test_front_plot_marks_infeasible_candidates(report_data):
    worst = replace(report_data.trials[0], feasible=False, on_front=False)
    data = replace(report_data, trials=(worst, *report_data.trials[1:]))
    assert len(traces(pareto_front(data))["over a limit"].x) == 1


def test_front_plot_of_three_objectives_has_no_line(report_data):
    macs = ObjectiveInfo("macs", "macs", "minimize", "", "counted")
    trials = tuple(replace(t, values={**t.values, "macs": 1e6}) for t in report_data.trials)
    objectives = (*report_data.objectives, macs)
    data = replace(report_data, objectives=objectives, trials=trials, baseline_trials=())
    figure = pareto_front(data, macs)
    assert traces(figure)["Pareto front"].mode == "markers"
    assert figure.layout.xaxis.title.text == "macs (counted)"


def test_front_plot_shows_the_architecture_on_hover(report_data):
    text = traces(pareto_front(report_data))["Pareto front"].hovertext[0]
    assert "latency 0." in text
    assert "ms (predicted)" in text
    assert "stage0: depth" in text
