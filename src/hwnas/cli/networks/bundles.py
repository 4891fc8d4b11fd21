"""Commands that verify and run bundles."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from hwnas.cli.app import NETWORKS, BundlePath, Json, app, out, print_json
from hwnas.cli.networks.caching import (
    ENTRIES,
    CacheData,
    CacheEntries,
    CacheMb,
    CacheNear,
    cache_of,
)
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.deploy.cascades.cascade import Cascade


@app.command(rich_help_panel=NETWORKS)
def verify(
    bundle: BundlePath,
    time: Annotated[
        bool, typer.Option("--time", help="Also repeat the measurements that the bundle records")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY.pub",
            help="Also check the signature by this public key of minisign, a file or its line",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a bundle or a cascade: checksums, ONNX, golden outputs, signature."""
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.deploy.bundles.sealed import SealCheck
    from hwnas.deploy.bundles.signature import PublicKey, check_signature
    from hwnas.deploy.cascades.cascade import open_packed
    from hwnas.deploy.measurement.retiming import retime

    public = None if key is None else PublicKey.read(key)
    opened = open_packed(bundle)
    checks = opened.verify()
    if public is not None:
        told = check_signature(opened.sums_file, public)
        checks.append(SealCheck("signature", True, f"by the given key: {told}"))
    if time:
        if not isinstance(opened, Bundle):
            raise ConfigError(f"{bundle} is a cascade; give --time one of its bundles")
        checks += retime(opened)
    if as_json:
        print_json([asdict(check) for check in checks])
        return
    for check in checks:
        mark = "[yellow]![/]" if check.warns else "[green]✓[/]"
        out.print(f"{mark} {escape(check.name)}  [dim]{escape(check.detail)}[/]", soft_wrap=True)


@app.command(rich_help_panel=NETWORKS)
def run(
    bundle: BundlePath,
    images: Annotated[list[Path], typer.Argument(help="Image files")],
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write the mask of one image (segmentation), the image with boxes (detection), or "
            "the picture (super-resolution) as a PNG",
        ),
    ] = None,
    cache_mb: CacheMb = None,
    cache_entries: CacheEntries = ENTRIES,
    cache_near: CacheNear = None,
    cache_data: CacheData = None,
    as_json: Json = False,
) -> None:
    """Run a bundle or a cascade on images."""
    from hwnas.deploy.cascades.cascade import open_packed

    opened = open_packed(bundle)
    if opened.outputs.kind == "next_byte_scores":
        raise ConfigError(f"{bundle} continues text, so it takes no images; use `hwnas generate`")
    cache = cache_of(opened, cache_mb, cache_entries, cache_near, cache_data)
    if out_path is not None:
        _write_answer(opened, images, out_path)
    for warning in opened.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    answers = opened.run(images, cache)
    if cache is not None:
        counts = cache.counts
        known = f"{counts.hits} equal to an earlier one, {counts.near_hits} nearly"
        print(f"cache: {counts.images} images, {known}", file=sys.stderr)
    if as_json:
        print_json([{"image": str(i), **a} for i, a in zip(images, answers, strict=True)])
        return
    for image, answer in zip(images, answers, strict=True):
        out.print(f"{image}  {_text(answer)}", soft_wrap=True, markup=False)


@app.command(rich_help_panel=NETWORKS)
def generate(
    bundle: BundlePath,
    prompt: Annotated[str, typer.Argument(help="Text to continue")],
    count: Annotated[int, typer.Option("--bytes", min=1, help="Bytes to add")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 for the most probable byte; 1 to draw as predicted")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws")] = 0,
    as_json: Json = False,
) -> None:
    """Continue a text with the network of a bundle."""
    from hwnas.deploy.bundles.bundle import Bundle

    opened = Bundle.load(bundle)
    for warning in opened.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    added = opened.continued(prompt, count, temperature, seed)
    if as_json:
        print_json({"prompt": prompt, "added": added})
        return
    out.print(prompt + added, soft_wrap=True, markup=False)


def _text(answer: Mapping[str, Any]) -> str:
    if "label" in answer:
        by = f"  ({answer['network']} network)" if "network" in answer else ""
        return f"{answer['label']}  {answer['probability']:.1%}{by}"
    if "shares" in answer:
        ordered = sorted(answer["shares"].items(), key=lambda item: -item[1])
        return "  ".join(f"{label} {share:.1%}" for label, share in ordered if share)
    if "tasks" in answer:
        named = answer["tasks"].items()
        return "  ".join(f"{task}: {a['label']} {a['probability']:.1%}" for task, a in named)
    if "present" in answer:
        shown = [f"{label} {answer['probabilities'][label]:.1%}" for label in answer["present"]]
        return "  ".join(shown) or "no label"
    if "boxes" in answer:
        shown = [f"{box['label']} {box['score']:.1%}" for box in answer["boxes"]]
        return "  ".join(shown) or "no object"
    if "height" in answer:
        return f"{answer['width']} x {answer['height']} pixels"
    return json.dumps(answer["values"])


def _write_answer(opened: Bundle | Cascade, images: Sequence[Path], path: Path) -> None:
    """Write the mask of one image, the image with its boxes, or its picture."""
    from PIL import Image

    from hwnas.deploy.bundles.box_image import write_image
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.deploy.bundles.mask_image import write_mask

    if len(images) != 1:
        raise ConfigError(f"--out is for one image; {len(images)} were given")
    if isinstance(opened, Bundle) and opened.outputs.kind == "boxes":
        write_image(path, opened.drawn(images[0]))
        return
    if isinstance(opened, Bundle) and opened.outputs.kind == "picture":
        (picture,) = opened.pictures(images)
        write_image(path, Image.fromarray(picture.squeeze()))
        return
    (mask,) = opened.masks(images)
    write_mask(path, mask)
