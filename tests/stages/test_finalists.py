import numpy as np

from hwnas.search.objective import losses
from hwnas.stages import Goal, Job
from hwnas.stages.finalists import choose, picks, read_bundles, score_of
from hwnas.stages.search import found


def test_finalists_show_the_front_and_are_filled_from_behind_it(job: Job, goal: Goal) -> None:
    result = found(job.folder.path, goal)
    chosen = choose(result, 3)
    assert len({trial.candidate.id for trial in chosen}) == 3
    table = losses(goal.objectives, [trial.values for trial in result.trials])
    best = {result.trials[i].candidate.id for i in table.argmin(0)}
    front = {trial.candidate.id for trial in result.front}
    if len(front) >= 3:
        assert {trial.candidate.id for trial in chosen} <= front
    assert best & front & {trial.candidate.id for trial in chosen}
    assert len(choose(result, 99)) == len(result.trials), "no more than there are"


def test_the_run_made_bundles_of_them(job: Job, goal: Goal) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    chosen = choose(found(job.folder.path, goal), 3)
    assert bundles.keys() == {trial.candidate.id for trial in chosen}
    assert read_bundles(job.folder.path / "none") == {}


def test_picks_go_by_measured_latency_and_validation_score(job: Job) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    metric = job.ingredients.task.metrics[0]
    named = picks(bundles, metric, job.recipe.objective)
    latency = {name: b.measurements[0].latency_ms for name, b in bundles.items()}
    accuracy = {n: score_of(b, "accuracy", "validation")["value"] for n, b in bundles.items()}
    assert latency[named["fastest"]] == min(latency.values())
    assert accuracy[named["most-accurate"]] == max(accuracy.values())
    knee = named["knee"]
    assert not any(latency[n] < latency[knee] and accuracy[n] > accuracy[knee] for n in bundles), (
        "nothing is better than the knee in both"
    )
    assert picks({}, metric, job.recipe.objective) == {}


def test_the_weights_of_a_bundle_give_its_test_score(job: Job) -> None:
    [bundle, *_] = read_bundles(job.folder.path / "bundles").values()
    test = job.ingredients.data.test
    images, labels = test.take(np.arange(len(test)))
    right = float((bundle.predict(images).argmax(1) == labels).mean())
    stated = score_of(bundle, "accuracy", "test")
    assert stated["n"] == len(test)
    assert abs(right - stated["value"]) <= 1 / len(test)
