import re
from dataclasses import replace

from hwnas.interval import lognormal_interval
from hwnas.report import Score, TargetLatency
from hwnas.report.tables import finalists_table, front_table, stages_table


def cells(table):
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    return [re.findall(r"<td.*?>(.*?)</td>", row) for row in rows]


def test_finalists_table_shows_measured_and_predicted_latency(report_data):
    knee, _, most_accurate = cells(finalists_table(report_data))
    measured = report_data.finalists[0].measurement
    assert f"{measured.latency_ms:.4g} ms" in knee[2]
    assert f"{measured.cpu_ms.p20:.4g} to {measured.cpu_ms.p80:.4g}" in knee[2]
    assert "CPU time, n = 60" in knee[2]
    low, high = lognormal_interval(
        report_data.finalists[0].predicted_latency_ms, report_data.finalists[0].predicted_std_ms
    ).ends
    assert f"{low:.4g} to {high:.4g}" in knee[3]
    assert ["disturbed" in row[2] for row in (knee, most_accurate)] == [False, True]


def test_finalists_table_marks_a_finalist_that_breaks_a_limit(report_data):
    assert "a limit" not in finalists_table(report_data)
    line = "latency_ms is 0.415 (measured); the limit is 0.1"
    broken = replace(report_data.finalists[0], missed_limits=(line,), limit_state="broken")
    data = replace(report_data, finalists=(broken, *report_data.finalists[1:]))
    first, *others = cells(finalists_table(data))
    assert "breaks a limit as measured" in first[0]
    assert line in first[0]
    assert not any("a limit" in row[0] for row in others)
    close = replace(broken, limit_state="within noise")
    table = finalists_table(replace(report_data, finalists=(close,)))
    assert "violates a limit, within noise" in table


def test_finalists_table_shows_an_interval_for_a_perfect_score(report_data):
    perfect = replace(report_data.finalists[0], test=Score(1.0, 0.0, 50))
    [row] = cells(finalists_table(replace(report_data, finalists=(perfect,))))
    assert "0.9287 to 1.0000" in row[1]


def test_finalists_table_has_a_column_per_further_target(report_data):
    timed = replace(report_data.finalists[0].measurement, target="cpu-openvino-fp32-b1-t1")
    found = TargetLatency(timed.target, 1.25, 0.1, timed)
    both = replace(
        report_data, finalists=tuple(replace(f, further=(found,)) for f in report_data.finalists)
    )
    table = finalists_table(both)
    assert "on cpu-openvino-fp32-b1-t1" in table
    assert all(f"{timed.latency_ms:.4g} ms" in row[4] for row in cells(table))
    assert all("1.25 ms" in row[4] for row in cells(table))


def test_front_table_is_sorted_and_complete(report_data):
    rows = cells(front_table(report_data))
    latencies = [float(re.search(r"[\d.]+", row[1])[0]) for row in rows]
    assert latencies == sorted(latencies)
    assert len(rows) == sum(trial.on_front for trial in report_data.trials)
    assert "stage0: depth" in rows[0][3]


def test_stages_table_says_that_no_gpu_was_used(report_data):
    assert {"none" in row[3] for row in cells(stages_table(report_data))} == {True}
