from dataclasses import replace

import pytest

from hwnas.report import CalibrationRow, StageTime, plots


def row(predicted, measured, role="left out in turn"):
    return CalibrationRow("id", predicted, 0.9 * predicted, 1.1 * predicted, measured, role)


def test_calibration_error_equals_values_by_hand():
    rows = [row(1.1, 1.0), row(1.9, 2.0), row(3.0, 3.0), row(5.0, 4.0)]
    expected = "median absolute error 7.5 %, Spearman 1.000, n = 4"
    assert plots.calibration_error(rows) == expected


@pytest.mark.parametrize("rows", [[row(1.0, 1.0)], [row(2.0, 1.0), row(2.0, 3.0), row(2.0, 4.0)]])
def test_calibration_error_leaves_out_an_undefined_correlation(rows):
    assert "Spearman" not in plots.calibration_error(rows)


def test_calibration_plot_shows_intervals_and_the_diagonal(report_data):
    figure = plots.calibration(report_data.calibration)
    diagonal, timed, finalists = figure.data
    assert "median absolute error" in figure.layout.title.text
    assert diagonal.x == diagonal.y
    assert (len(timed.x), len(finalists.x)) == (8, 3)
    assert min(*timed.error_y.array, *timed.error_y.arrayminus) > 0


def test_generalisation_plot_shows_validation_minus_test(report_data):
    figure = plots.generalisation(report_data)
    for trace, finalist in zip(figure.data, report_data.finalists, strict=True):
        validation, test = finalist.validation, finalist.test
        up, down = trace.error_x.array[0], trace.error_x.arrayminus[0]
        assert trace.x[0] == pytest.approx(finalist.validation.mean - finalist.test.mean)
        sides = validation.interval.above(validation.mean), test.interval.below(test.mean)
        assert max(sides) < up < sum(sides)
        sides = validation.interval.below(validation.mean), test.interval.above(test.mean)
        assert max(sides) < down < sum(sides)
        assert not trace.error_x.symmetric


def test_hypervolume_plot_has_one_line_per_sampler(report_data):
    assert [line.name for line in plots.hypervolume(report_data).data] == ["nsga2", "random"]
    alone = replace(report_data, hypervolume=report_data.hypervolume[:1])
    assert [line.name for line in plots.hypervolume(alone).data] == ["nsga2"]


def test_training_plot_shows_both_losses_and_the_learning_rate(report_data):
    names = [line.name for line in plots.training_curves(report_data).data]
    assert names == ["largest network", "smallest network", "learning rate"]


def test_plot_of_learned_choices_has_a_row_a_choice(report_data):
    (heatmap,) = plots.learned_choices(report_data.learned[0]).data
    assert heatmap.y == ("depth", "kernel")
    assert [list(row) for row in heatmap.z] == [[0.7, 0.3, None], [0.1, 0.6, 0.3]]
    assert [list(row) for row in heatmap.text] == [["1", "2", ""], ["3", "5", "7"]]


def test_stage_plot_shows_gpu_time_only_if_a_gpu_was_used(report_data):
    assert [bar.name for bar in plots.stage_seconds(report_data).data] == ["wall time", "CPU time"]
    times = (*report_data.stage_times, StageTime("more", 1.0, 1.0, 0.5, "done"))
    gpu = plots.stage_seconds(replace(report_data, stage_times=times)).data[2]
    assert (gpu.x[-1], gpu.hovertext[-1], gpu.hovertext[0]) == (0.5, "GPU time 0.5 s", "")
