"""Write the devices that hwnas ships, from the recorded measurements."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from experiments.latency_zoo.run import FOLDER as ZOO
from experiments.latency_zoo.zoo import read_zoo
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.shipped import FOLDER, prior_of_devices, ship


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.latency_zoo.ship", description=__doc__
    )
    parser.parse_args()
    profiles = read_zoo()
    known = prior_of_devices(profiles)
    ship(
        [
            replace(p, held_out_error=DevicePredictor.of(p, known.only(p.device)).held_out_error)
            for p in profiles
        ],
        json.loads((ZOO / "fingerprints.json").read_text(encoding="utf-8")),
        FOLDER,
    )
    print(f"{len(profiles)} devices of {len(profiles[0])} networks are in {FOLDER}")


if __name__ == "__main__":
    main()
