"""The documentation: code runs, recipes parse, commands, modules and link targets exist."""

import ast
import importlib.util
import inspect
import operator
import pickle
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import pytest
import tomlkit
import typer
from PIL import Image

import hwnas
from hwnas.cli import app
from hwnas.deploy.gate.gate import COSTS, read_budget
from hwnas.experiment import Experiment
from hwnas.recipe import Recipe, read_recipe
from hwnas.search.objectives.objective import check_objectives
from hwnas.search.samplers import make_sampler
from hwnas.search_spaces.registry import joint_space
from hwnas.stages import RunInputs

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hwnas"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUNNABLE = [ROOT / "README.md", *GUIDES]
QUICK = {"README.md", "data.md", "own_model.md", "results.md", "search.md"}
"""Pages whose code takes a moment."""

QUICKSTART = ROOT / "experiments" / "quickstart" / "recipe.toml"
TINY = (
    "data.train_limit=300",
    "data.test_limit=100",
    "train.epochs=0.1",
    "train.workers=0",
    "search.workers=0",
    "search.trials=1",
    "deploy.top=1",
    "deploy.finetune_epochs=0",
)
METRICS: dict[str, dict[str, Literal["maximize", "minimize"]]] = {
    "classification": {"accuracy": "maximize"},
    "multi-task": {"accuracy": "maximize"},
    "multilabel": {"average_precision": "maximize"},
    "regression": {"root_mean_squared_error": "minimize", "accuracy": "maximize"},
    "segmentation": {"mean_iou": "maximize", "pixel_accuracy": "maximize"},
    "detection": {"map": "maximize", "map_50": "maximize", "map_75": "maximize"},
    "super-resolution": {"psnr_db": "maximize", "ssim": "maximize"},
    "language-model": {"perplexity": "minimize", "bits_per_byte": "minimize"},
}
BASE = """
name = "base"
data = { source = "digits" }
train = { epochs = 1 }
objective = [{ metric = "accuracy", direction = "maximize" }]
"""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Return the file name in the comment on the first line, if there is one."""
        found = re.match(r"# ([\w-]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{relative(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])


BUDGET = "budget.toml"
TOML_BLOCKS = [block for page in PAGES for block in blocks(page) if block.language == "toml"]
RECIPES = [block for block in TOML_BLOCKS if block.file != BUDGET]
BUDGETS = [block for block in TOML_BLOCKS if block.file == BUDGET]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the start of the guides: a tiny quickstart recipe and its finished run.

    MACs replace latency, because timing networks takes longer than everything else.
    """
    folder = tmp_path_factory.mktemp("quickstart")
    recipe = folder / "experiments" / "quickstart" / "recipe.toml"
    recipe.parent.mkdir(parents=True)
    document = tomlkit.parse(QUICKSTART.read_text(encoding="utf-8"))
    document["objective"] = [
        {"metric": "accuracy", "direction": "maximize"},
        {"metric": "macs", "direction": "minimize"},
    ]
    recipe.write_text(tomlkit.dumps(document), encoding="utf-8")
    recipe.write_text(read_recipe(recipe, TINY)[1], encoding="utf-8")
    Experiment.load(recipe).run(folder / "runs" / "quickstart")
    Image.new("L", (20, 20), 128).save(folder / "image.png")
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=relative(page), marks=() if page.name in QUICK else pytest.mark.slow)
        for page in RUNNABLE
    ],
)
def test_documentation_python_blocks_run(
    page: Path, quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quickstart, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, Any] = {"__name__": "guide"}
    # `dataclass` looks up its module in `sys.modules`.
    monkeypatch.setitem(sys.modules, "guide", type(sys)("guide"))
    found = [block for block in blocks(page) if block.language in ("python", "toml")]
    files = {block.file: block.text for block in found if block.file}
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    try:
        for block in found:
            if block.language == "python" and not block.file:
                exec(compile("\n" * block.line + block.text, page, "exec"), namespace)
        for name in files:
            if name.endswith(".toml") and name != BUDGET:
                check_plugins(Path(name))
    finally:
        for name in files:
            sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_documentation_calls_bind_to_the_python_interface(page: Path) -> None:
    """Blocks of ``py`` are too long to run; their calls must fit the signatures."""
    for block in blocks(page):
        if block.language != "py":
            continue
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("hwnas."):
                function = operator.attrgetter(ast.unparse(node.func)[6:])(hwnas)
                named = {str(each.arg): None for each in node.keywords}
                inspect.signature(function).bind(*node.args, **named)


def check_plugins(recipe: Path) -> None:
    """Check that the components of the recipe fit together and can be pickled."""
    made = RunInputs.prepare(read_recipe(recipe)[0], Path())
    assert pickle.loads(pickle.dumps(made.task)) == made.task
    assert pickle.loads(pickle.dumps(made.space)).fingerprint == made.space.fingerprint


@pytest.mark.parametrize("block", BUDGETS, ids=str)
def test_documentation_budgets_parse(block: Block, tmp_path: Path) -> None:
    path = tmp_path / BUDGET
    path.write_text(block.text, encoding="utf-8")
    assert read_budget(path).limits.keys() >= COSTS.keys()


@pytest.mark.parametrize("block", RECIPES, ids=str)
def test_documentation_recipes_parse(block: Block, tmp_path: Path) -> None:
    """Single tables replace those of a small recipe."""
    table = tomllib.loads(block.text)
    whole = table if "name" in table else {**tomllib.loads(BASE), **table}
    path = tmp_path / "recipe.toml"
    path.write_text(tomlkit.dumps(whole), encoding="utf-8")
    recipe, _ = read_recipe(path)
    check_names(recipe)


def check_names(recipe: Recipe) -> None:
    """Check that components with short names accept the options of the recipe."""
    if ":" not in recipe.search.sampler:
        make_sampler(recipe.search.sampler, 0, recipe.search.options)
    own = [*recipe.space.names, str(recipe.space.options.get("model", ""))]
    if not any(":" in name for name in own):
        shape = (1, 28, 1) if "decoder" in recipe.space.names else (28, 28, 1)
        joint_space(recipe.space.names, shape, 10, recipe.space.options)
    if ":" not in recipe.task.name:
        check_objectives(recipe.objective, METRICS[recipe.task.name])


def options_by_command() -> dict[str, set[str]]:
    """Return the options of each command, e.g. of ``"bench engine"``."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            walk(child, (*words, name))
        context = click.Context(command)
        names = [option for p in command.get_params(context) for option in p.opts]
        found[" ".join(words)] = {name for name in names if name.startswith("--")}

    walk(typer.main.get_command(app), ())
    return found


OPTIONS = options_by_command()


def commands_in(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each command line in code other than Python: the text after ``hwnas``."""
    text = page.read_text(encoding="utf-8")
    code = [block.text for block in blocks(page) if block.language != "python"]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", outside)
    for part in code:
        for line in re.findall(r"(?:^|(?<=[\s/]))hwnas ([a-z-].*)$", part, re.MULTILINE):
            yield line, f"{relative(page)}: hwnas {line}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_documentation_shows_only_existing_commands_and_options(page: Path) -> None:
    for line, where in commands_in(page):
        words = shlex.split(line, comments=True)
        longer = " ".join(words[:2])
        command = longer if longer in OPTIONS else words[0]
        if command.startswith("--"):
            continue  # `hwnas --help`
        assert command in OPTIONS, f"{where}: there is no such command"
        shown = {word.partition("=")[0] for word in words if word.startswith("--")}
        unknown = shown - OPTIONS[command]
        assert not unknown, f"{where}: no option {unknown}; there are {OPTIONS[command]}"


COMMANDS = ROOT / "docs" / "guides" / "commands.md"


def test_commands_page_lists_every_command() -> None:
    text = COMMANDS.read_text(encoding="utf-8")
    leaves = {name for name in OPTIONS if name not in ("", "agent", "bench", "kernels")}
    missing = {name for name in leaves if f"| `hwnas {name}" not in text}
    assert not missing


def test_commands_page_names_existing_options() -> None:
    """Options that are alone in code marks, in the row of their command."""
    rows = re.findall(
        r"^\| `hwnas ((?:agent|bench|kernels) [a-z]+|devices (?:add|remove)|[a-z]+)[^|]*\|(.*)\|$",
        COMMANDS.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rows
    for command, text in rows:
        for option in re.findall(r"`(--[a-z-]+)", text):
            assert option in OPTIONS[command], f"{command} {option}"


def test_readme_is_short_and_has_markers_for_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert re.search(r"^<!-- results -->\n.+\n<!-- /results -->$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_documentation_links_have_existing_targets(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{relative(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{relative(page)}: {link} leaves the repository"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in anchors, f"{relative(page)}: {link}"


def test_page_of_all_keys_is_made_from_the_code() -> None:
    """`python docs/recipe_reference.py` writes it."""
    pytest.importorskip("griffe")
    path = ROOT / "docs" / "recipe_reference.py"
    spec = importlib.util.spec_from_file_location("recipe_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.reference() == (ROOT / "docs" / "guides" / "recipe.md").read_text("utf-8")


def test_documentation_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    text = index.read_text(encoding="utf-8")
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p != index]
    missing = [p.name for p in pages if f"({p.relative_to(index.parent)})" not in text]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_documentation_names_only_existing_modules(page: Path) -> None:
    for name in re.findall(r"`(?:src/hwnas/)?((?:\w+/)+\w+\.py)", page.read_text(encoding="utf-8")):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), f"{relative(page)}: {name}"


def test_architecture_page_shows_every_package_and_module() -> None:
    page = ROOT / "docs" / "architecture.md"
    tree = next(block.text for block in blocks(page) if block.language == "text")
    rooms = [p.name for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    hidden = {room for room in rooms if room not in tree and not room.startswith("__")}
    assert not hidden
    shown = re.findall(r"^    (\w+(?:\.py|/)(?:  ?\w+\.py)*)", tree, re.MULTILINE)
    names = [name for row in shown for name in row.split()]
    assert names
    assert all((PACKAGE / name).exists() for name in names), names
