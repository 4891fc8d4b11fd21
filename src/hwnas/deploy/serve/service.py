"""What is asked of a served bundle, without the protocol in which it is asked."""

from __future__ import annotations

import io
import math
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.mask_image import mask_png
from hwnas.deploy.model_repository import model_name
from hwnas.deploy.serve.batching import Batcher
from hwnas.deploy.serve.limits import Limits, Refusal
from hwnas.deploy.serve.metrics import Counter, Gauge, Histogram, Metric
from hwnas.errors import ConfigError

__all__ = ["BatchSettings", "Service"]

_FORMATS = ("PNG", "JPEG")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

Inputs = NDArray[np.float32]
"""(N, C, H, W), as the network takes them."""


@dataclass(frozen=True)
class BatchSettings:
    """How requests are put together.

    Attributes:
        max_batch: Images that run through the network at once.
        max_wait_ms: A request waits at most so long for others to join it.
        threads: Of ONNX Runtime.
    """

    max_batch: int = 8
    max_wait_ms: float = 2.0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.threads < 1 or not 0 <= self.max_wait_ms < math.inf:
            raise ConfigError(
                f"max_batch {self.max_batch}, max_wait_ms {self.max_wait_ms}, threads "
                f"{self.threads}: expected at least 1, 0 and 1"
            )


class Service:
    """A bundle that is loaded, and the queue before it.

    Args:
        bundle: Verified before anything is answered.
        settings: How requests are put together.
        limits: What clients may do.
        name: Of the model, in addresses; the bundle's own if None.

    Raises:
        ArtifactError: The bundle is damaged.
        DeviceError: This machine has fewer cores than threads are wanted.
    """

    def __init__(
        self, bundle: Bundle, settings: BatchSettings, limits: Limits, name: str | None = None
    ) -> None:
        bundle.verify()
        self.name = model_name(bundle, name)
        self.bundle, self.limits = bundle, limits
        self._session = bundle.session(settings.max_batch, settings.threads)
        self.requests = Counter(
            "hwnas_requests_total", "Requests that were answered.", ("path", "status")
        )
        self.seconds = Histogram(
            "hwnas_request_seconds", "From the head of a POST to its answer.", _SECONDS
        )
        self._images = Counter("hwnas_images_total", "Images that the network has seen.")
        self._run_seconds = Histogram(
            "hwnas_run_seconds", "The network alone, a batch at a time.", _SECONDS
        )
        sizes = [2**i for i in range((settings.max_batch - 1).bit_length() + 1)]
        self._batch = Histogram("hwnas_batch_images", "Images that were run together.", sizes)
        self._batcher = Batcher(
            self._session.run,
            settings.max_batch,
            settings.max_wait_ms / 1e3,
            limits.waiting_images,
            self._observe,
        )

    @property
    def metrics(self) -> list[Metric]:
        """All that is counted here."""
        waiting = Gauge(
            "hwnas_queue_images", "Images that wait for the network.", lambda: self._batcher.waiting
        )
        about = {"model": self.name, "bundle": str(self.bundle.description["id"])}
        info = Gauge("hwnas_info", "What is served.", lambda: 1, about)
        return [
            info, self.requests, self.seconds, self._images, self._batch, self._run_seconds, waiting
        ]  # fmt: skip

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of raw pixels."""
        channels, height, width = self.bundle.preprocessing.input_shape
        return height, width, channels

    def read_file(self, body: bytes) -> NDArray[np.uint8]:
        """The pixels (1, H, W, C) of an image file, in its own size.

        Raises:
            DataError: It is none, or damaged.
            Refusal: It has too many pixels.
        """
        try:
            with Image.open(io.BytesIO(body), formats=_FORMATS) as image:
                width, height = image.size
        except Exception:  # damaged files make Pillow raise nearly anything
            raise Refusal(400, f"the body is no image; expected {' or '.join(_FORMATS)}") from None
        if width * height > self.limits.pixels:
            raise Refusal(
                413, f"the image has {width} x {height} pixels; at most {self.limits.pixels} fit"
            )
        return self.bundle.preprocessing.read_image(io.BytesIO(body))[None]

    def read_pixels(self, body: bytes) -> NDArray[np.uint8]:
        """Raw images (N, H, W, C) of the network's own size, one after the other.

        Raises:
            Refusal: The body is no whole number of images.
        """
        size = math.prod(self.image_shape)
        if not body or len(body) % size:
            raise Refusal(
                400,
                f"the body has {len(body)} bytes; expected a multiple of {size}: uint8 images of "
                f"height x width x channels = {' x '.join(map(str, self.image_shape))}",
            )
        return np.frombuffer(body, np.uint8).reshape(-1, *self.image_shape)

    def outputs(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """The network's outputs (N, ...) for uint8 images (N, H, W, C), through the queue.

        Raises:
            Refusal: The queue is full, or the network takes too long.
            ArtifactError: The network fails.
        """
        # Here, in the request's own thread, so that the network's thread does nothing but run it.
        inputs = self.bundle.preprocessing(images).contiguous().numpy()
        answer: Future[NDArray[Any]] = self._batcher.submit(inputs)
        try:
            return answer.result(self.limits.answer_s)
        except TimeoutError:
            raise Refusal(
                504, f"the network gave no answer in {self.limits.answer_s:g} s"
            ) from None

    def describe(self, images: NDArray[np.uint8]) -> list[dict[str, Any]]:
        """What the network says about uint8 images (N, H, W, C); see `OutputMeaning.describe`."""
        return self.bundle.outputs.describe(self.outputs(images))

    def mask(self, images: NDArray[np.uint8]) -> bytes:
        """The mask of one uint8 image (1, H, W, C) in its own size, as a PNG.

        Raises:
            Refusal: There are several images, or the mask would take too much memory.
            DataError: The network is none for segmentation.
        """
        count, height, width, _ = images.shape
        scores = 4 * height * width * len(self.bundle.outputs.labels)
        if count != 1:
            raise Refusal(400, f"{count} images were sent; a mask is made of one")
        if scores > self.limits.mask_bytes:
            raise Refusal(
                413, f"the mask of {width} x {height} pixels takes too much memory; shrink it"
            )
        return mask_png(self.bundle.outputs.masks(self.outputs(images), (height, width))[0])

    def close(self) -> None:
        """Answer those who wait, and take no more."""
        self._batcher.close()

    def _observe(self, images: int, seconds: float) -> None:
        self._images.add(images)
        self._batch.observe(images)
        self._run_seconds.observe(seconds)
