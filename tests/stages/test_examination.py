"""Which images variants of a network are made with."""

import numpy as np

from hwnas.deploy.io import Preprocessing
from hwnas.search.split import Split
from hwnas.stages.examination import calibration_batches


def test_ranges_are_taken_from_images_of_all_classes() -> None:
    classes = np.arange(1000) // 100  # sorted, as a division of one's own may be
    images = classes.astype(np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2)
    plain = Preprocessing(2, 2, 1, (0.0,), (1 / 255,))
    batches = calibration_batches(Split(images, classes, np.arange(1000)), plain, 8)
    assert {len(batch) for batch in batches} == {8}
    assert set(np.unique(np.round(np.concatenate(batches)))) == set(range(10))
