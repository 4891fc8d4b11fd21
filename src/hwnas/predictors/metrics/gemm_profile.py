"""Matrix products that were timed on a target, stored beside the target's device profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hwnas.atomic import write_json
from hwnas.errors import ConfigError
from hwnas.predictors.devices.prediction import Prediction, elsewhere
from hwnas.predictors.devices.store import SCHEMA, DeviceStore, check_device_name, read_description
from hwnas.predictors.metrics.gemm import Gemm
from hwnas.predictors.metrics.gemm_model import LEAST, GemmModel, PowerModel, Product
from hwnas.predictors.metrics.gemm_tiles import GemmTile, TiledGemm, TileSite, allowed_tiles

__all__ = ["GemmProfile", "load_gemms", "predict_gemm", "save_gemms"]

_NO_POWER = "power is unknown: no energy counter (RAPL or NVML) was read when products were timed"


@dataclass(frozen=True)
class GemmProfile:
    """Matrix products that were timed on one target.

    Attributes:
        device: Name of the target.
        gemms: Products that were timed; one that was timed in several tiles is there several times.
        latencies_ms: Latency of each product, in milliseconds.
        hardware: Processor, in words.
        versions: Versions of the packages that matter.
        time: Time of the last measurement, ISO 8601.
        powers_w: Mean power during each product, in watts, None where it is unknown; empty if it
            is unknown for all.
        counter: Name of the energy counter; empty if there is none.
        tiles: Tile of each product; empty if the runtime chooses them itself.
        site: GPU, number format and batch size of the tiles; None without tiles.
    """

    device: str
    gemms: tuple[Gemm, ...]
    latencies_ms: tuple[float, ...]
    hardware: str
    versions: Mapping[str, str]
    time: str
    powers_w: tuple[float | None, ...] = ()
    counter: str = ""
    tiles: tuple[GemmTile, ...] = ()
    site: TileSite | None = None

    def __post_init__(self) -> None:
        for name in ("latencies_ms", "powers_w", "tiles"):
            count, optional = len(getattr(self, name)), name != "latencies_ms"
            if count != len(self.gemms) and (count or not optional):
                raise ConfigError(
                    f"{count} {name} for {len(self.gemms)} products; expected as many"
                )
        if bool(self.tiles) != (self.site is not None):
            raise ConfigError("tiles need the site on which they were timed, and only they do")

    @property
    def products(self) -> Sequence[Product]:
        """Products with their tiles, if these are known."""
        if self.site is None:
            return self.gemms
        pairs = zip(self.gemms, self.tiles, strict=True)
        return [TiledGemm(gemm, tile, self.site) for gemm, tile in pairs]

    def model(self) -> GemmModel:
        """Return the model that predicts the latency of other products, or in other tiles."""
        return GemmModel.fit(self.device, self.products, self.latencies_ms)

    def power_model(self, latency: GemmModel) -> PowerModel | None:
        """Return the model that predicts the power, or None if too few powers were measured."""
        known = [place for place, power in enumerate(self.powers_w) if power is not None]
        if len({self.products[place] for place in known}) < LEAST:
            return None
        products, powers = self.products, np.array(self.powers_w, dtype=np.float64)
        latencies = np.array(self.latencies_ms)[known]
        return PowerModel.fit(latency, [products[i] for i in known], latencies, powers[known])


def save_gemms(store: DeviceStore, profile: GemmProfile) -> None:
    """Store products, in place of older ones of the same device.

    Raises:
        StorageError: The file cannot be written.
    """
    sizes = [list(gemm.sizes) for gemm in profile.gemms]
    more = {
        "powers_w": profile.powers_w,
        "counter": profile.counter,
        "tiles": [str(tile) for tile in profile.tiles],
        "site": None if profile.site is None else asdict(profile.site),
    }
    # Earlier versions read a file only if it has nothing that they do not know.
    known = {name: value for name, value in more.items() if value}
    plain = {name: value for name, value in vars(profile).items() if name not in more}
    values = {"schema": SCHEMA, **plain, "gemms": sizes, **known}
    write_json(_path(store, profile.device), values)


def load_gemms(store: DeviceStore, device: str) -> GemmProfile:
    """Read the products that were timed on a device.

    Raises:
        ConfigError: No products were timed on it.
        ArtifactError: The file is damaged, or was written by a newer version of hwnas.
    """
    path = _path(store, device)
    if not path.is_file():
        raise ConfigError(
            f"no matrix products were timed on {device}; `hwnas calibrate --target {device} "
            "--gemm` times some"
        )
    with read_description(path) as found:
        site = found.pop("site", None)
        return GemmProfile(
            gemms=tuple(Gemm(*sizes) for sizes in found.pop("gemms")),
            latencies_ms=tuple(found.pop("latencies_ms")),
            powers_w=tuple(found.pop("powers_w", ())),
            tiles=tuple(map(GemmTile.parse, found.pop("tiles", ()))),
            site=None if site is None else TileSite(**site),
            **found,
        )


def predict_gemm(
    store: DeviceStore, device: str, gemm: Gemm, tile: GemmTile | None = None
) -> list[Prediction]:
    """Predict the latency, and the power if it is known, of one product on a target.

    Args:
        store: Store of the products that were timed.
        device: Target on which products were timed.
        gemm: Product.
        tile: Tile to compute it in, for targets of the runtime ``triton``; the one that is
            predicted to be fastest if None.

    Raises:
        ConfigError: No products were timed on the target, its runtime chooses tiles itself, or its
            GPU cannot compute in the tile.
    """
    profile = load_gemms(store, device)
    latency = profile.model()
    product: Product = gemm
    notes = elsewhere(device, profile.hardware)
    if profile.site is not None:
        if tile is not None:
            profile.site.check(tile)
        tiles = [tile] if tile else allowed_tiles(gemm, profile.site)
        tiled = [TiledGemm(gemm, each, profile.site) for each in tiles]
        product = tiled[int(np.argmin(latency.roofline.log_costs(tiled)))]
        if tile is None:
            notes.append(f"tile {product.tile} is predicted to be the fastest of {len(tiles)}")
    elif tile is not None:
        raise ConfigError(f"{device} chooses its tiles itself; leave --tile out")
    power = profile.power_model(latency)
    count = len(set(profile.products))
    if power is None:
        notes.append(_NO_POWER)
    found = [Prediction(latency.predict([product])[0], count, tuple(notes))]
    return found if power is None else [*found, Prediction(power.predict([product])[0], count)]


def _path(store: DeviceStore, device: str) -> Path:
    check_device_name(device)
    return store.folder / device / "gemm.json"
