"""Stale stages of a run, determined without decoding images or building networks.

Only inputs that can be read at once are compared: the recipe, the list of files or the arrays of
the images, the user's own code, the processor, and the result files of a stage.
`hwnas.experiment.resume` compares all inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import HwnasError
from hwnas.given_objects import is_unnamed
from hwnas.identity import Identity, InputChange
from hwnas.plugin import imports_from
from hwnas.recipe.keys import AFTER, RecipeStage, code_of, decides, parts_of, settings_of
from hwnas.run_folder import RunFolder, StageRecord
from hwnas.search.data.loading import data_manifest
from hwnas.search.data.manifest import DataManifest, manifest_difference
from hwnas.stages.goal import SearchGoal
from hwnas.stages.images import MANIFEST
from hwnas.stages.job import serves
from hwnas.stages.run_inputs import evaluator_of, needs_weights

__all__ = ["stale_stages", "told_stale"]


def stale_stages(
    folder: RunFolder, anywhere: bool = False, edits: bool = True
) -> dict[str, tuple[str, ...]]:
    """Return the stages whose results do not belong to the current inputs, each with the reasons.

    Stages that an older hwnas recorded are left out, since their inputs are not known by name. So
    are stages that are not done, or that the recipe no longer asks for.

    Args:
        folder: Folder of the run.
        anywhere: Whether to accept results that were measured on another processor.
        edits: Whether to count an edit of a key whose content alone matters, although the content
            may be the same.
    """
    with imports_from(folder.recipe_folder):
        images = _images(folder)
        stale: dict[str, tuple[str, ...]] = {}
        for name, record in folder.stages.items():
            if not _is_wanted(folder, name):
                continue
            if record.state == "done" and record.identity is not None:
                stage = parts_of(name)[0]
                own = [*_reasons(folder, stage, record, images, anywhere)]
                own += [edit.text for edit in folder.edits if edits and _redoes(edit, stage)]
                reasons = tuple(own) or tuple(_upstream_reasons(folder, name, record, stale))
                if reasons:
                    stale[name] = reasons
    return stale


def _redoes(edit: InputChange, stage: RecipeStage) -> bool:
    """Return whether the edit of a key may redo a stage that does not record the key itself."""
    found = decides(edit.name)
    return found.how == "by content" and stage in found.stages


def _is_wanted(folder: RunFolder, name: str) -> bool:
    """Return whether the current recipe of a run asks for a stage."""
    (stage, target), recipe = parts_of(name), folder.recipe
    if stage == "calibrate":
        return target in (*SearchGoal(recipe.objective).targets, *folder.specialised)
    if stage == "random-baseline":
        return recipe.search.random_baseline
    if stage == "reference":
        return recipe.deploy.reference
    if stage == "ranking" and not recipe.train.ranking_check:
        return False
    if stage not in ("train", "ranking"):
        return True
    known = not is_unnamed(recipe.search.evaluator) or folder.objects.evaluator is not None
    return not known or needs_weights(evaluator_of(recipe, folder.objects))


def _upstream_reasons(
    folder: RunFolder, name: str, record: StageRecord, stale: Collection[str]
) -> Iterator[str]:
    """Yield a reason why results that the stage uses may have changed: one at most."""
    upstream, own = AFTER[parts_of(name)[0]], SearchGoal(folder.recipe.objective).targets
    before = [
        each
        for each in folder.stages
        if parts_of(each)[0] in upstream and serves(each, name, own) and _is_wanted(folder, each)
    ]
    if late := [each for each in before if each in stale]:
        yield f"{late[0]} is stale"
    elif late := [each for each in before if folder.stages[each].state != "done"]:
        yield f"{late[0]} is not finished"
    elif record.doubtful:
        yield "its inputs were redone since"


def told_stale(folder: RunFolder, stale: Mapping[str, tuple[str, ...]]) -> str:
    """Return one line about the first of the stale stages, and the command that redoes it."""
    stage, reasons = next(iter(stale.items()))
    return (
        f"{folder.path} is stale: {stage} ({'; '.join(reasons)}). `hwnas resume {folder.path}` "
        "redoes what depends on it"
    )


def _reasons(
    folder: RunFolder, stage: RecipeStage, record: StageRecord, images: _Images, anywhere: bool
) -> Iterator[str]:
    stored = record.identity
    assert stored is not None
    for change in _now(folder, stage, stored, anywhere).changes_since(stored):
        yield change.text
    if changed := images.changed(str(stored.inputs.get("data", ""))):
        yield f"data: {changed}"
    for result in _results(stage):
        if not (folder.path / result).exists():
            yield f"{result} is missing"


def _now(folder: RunFolder, stage: RecipeStage, stored: Identity, anywhere: bool) -> Identity:
    """Return the stored inputs, with current values for those that can be read at once."""
    settings = settings_of(folder.recipe, stage) | code_of(folder.recipe, stage)
    named = {k: v for k, v in stored.inputs.items() if not ("." in k or k in ("seed", "objective"))}
    inputs: Mapping[str, Any] = {
        k: v for k, v in named.items() if not k.startswith("code of ")
    } | settings
    if stage == "calibrate" and not anywhere:
        hardware = processor_of(Target.parse(str(stored.inputs["target"])).device.hardware)
        inputs = {**inputs, "hardware": hardware}
    return Identity(inputs)


def _results(stage: RecipeStage) -> tuple[str, ...]:
    files: Mapping[str, tuple[str, ...]] = {
        "train": ("supernet/weights.safetensors",),
        "search": ("study.db",),
    }
    return files.get(stage, ())


@dataclass(frozen=True)
class _Images:
    """Images of a run, as far as they are known without decoding.

    Attributes:
        now: Current manifest; None if it is known only after running the source.
        before: Manifest that the run was last worked on with; None if it was not stored.
        problem: Reason why the images cannot be read; empty if they can.
    """

    now: DataManifest | None
    before: DataManifest | None
    problem: str = ""

    def changed(self, stored: str) -> str:
        """Return how the images differ from those of a stage; empty if equal or unknown."""
        if not stored or self.problem:
            return self.problem if stored else ""
        fingerprint, _, _ = stored.partition(" ")
        if self.now is None or self.now.fingerprint == fingerprint:
            return ""
        if self.before is not None and self.before.fingerprint == fingerprint:
            return manifest_difference(self.before, self.now)
        return "images changed"


def _images(folder: RunFolder) -> _Images:
    path = folder.path / MANIFEST
    before = DataManifest.read(path) if path.exists() else None
    try:
        return _Images(data_manifest(folder.recipe.data, folder.recipe_folder), before)
    except HwnasError as error:
        return _Images(None, before, str(error))
