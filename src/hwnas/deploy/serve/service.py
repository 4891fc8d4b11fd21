"""Service that answers requests to a bundle or cascade, independent of the network protocol."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.mask_image import mask_png
from hwnas.deploy.bundles.model_repository import model_name
from hwnas.deploy.caching.prediction_cache import PredictionCache
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.cascades.runner import unsure
from hwnas.deploy.serve.batching import Batcher, Drop
from hwnas.deploy.serve.costs import Answering, RequestCosts
from hwnas.deploy.serve.image_header import read_header
from hwnas.deploy.serve.limits import RequestRefusal, ServerLimits
from hwnas.deploy.serve.memory import MemoryBudget, Reservation
from hwnas.deploy.serve.metrics import Counter, Gauge, Histogram, Metric, cache_metrics
from hwnas.deploy.serve.served import (
    ServedNetwork,
    input_of,
    model_id,
    networks_of,
    output_shape,
)
from hwnas.errors import ConfigError

__all__ = ["BatchSettings", "ResourceClaim", "Service"]

_NOT_SERVED = {
    "picture": ("pictures", "hwnas run --out"),
    "next_byte_scores": ("text", "hwnas generate"),
}
"""What networks make that are not served, and the command to use instead, by kind of output."""
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)

Inputs = NDArray[np.float32]
"""Network inputs, of shape (N, C, H, W)."""


@dataclass(frozen=True)
class BatchSettings:
    """Settings of how requests are batched.

    Attributes:
        max_batch: Largest number of images in one run of the network.
        max_wait_ms: Longest time that a request waits for others to join its batch, in ms.
        threads: Number of threads of ONNX Runtime.
    """

    max_batch: int = 8
    max_wait_ms: float = 2.0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.threads < 1 or not 0 <= self.max_wait_ms < math.inf:
            raise ConfigError(
                f"max_batch is {self.max_batch}, max_wait_ms {self.max_wait_ms} and threads "
                f"{self.threads}; expected at least 1, 0 and 1"
            )


@dataclass
class ResourceClaim:
    """Memory and time granted to one request.

    Attributes:
        deadline: Time on the monotonic clock after which the request is not computed any more.
        is_connected: Function that returns whether the client is still connected.
        answering: Form in which the outputs are sent.
        reserved: Memory reserved for the request's work; the creator of the claim gives it back.
    """

    deadline: float = math.inf
    is_connected: Callable[[], bool] = lambda: True
    answering: Answering = "meaning"
    reserved: list[Reservation] = field(default_factory=list, repr=False)

    @property
    def is_wanted(self) -> bool:
        """True if the deadline has not passed and the client is still connected."""
        return time.monotonic() <= self.deadline and self.is_connected()

    def shrink(self, size: int) -> None:
        """Give back all reserved memory except ``size`` bytes."""
        for place, reservation in enumerate(reversed(self.reserved)):
            reservation.shrink(0 if place else size)


class Service:
    """Loaded bundle or cascade with a queue of requests in front of each of its networks.

    Args:
        model: Bundle or cascade to serve; it is verified before any request is answered.
        settings: Settings of how requests are batched.
        limits: Limits on what clients may request.
        name: Name of the model in addresses; its id if None.
        cache: Cache of outputs for images that were seen before; None computes all.
        artifact: Name of the bundle's artifact that computes, such as ``"int8@openvino"``; the
            first one if None.

    Raises:
        ArtifactError: The model is damaged.
        ConfigError: The network makes pictures, the memory limit is too small for one image of the
            network's size, the name cannot be part of an address, or there is no such artifact.
        DeviceError: This machine has fewer cores than the requested threads.
    """

    def __init__(
        self,
        model: Bundle | Cascade,
        settings: BatchSettings,
        limits: ServerLimits,
        name: str | None = None,
        cache: PredictionCache | None = None,
        artifact: str | None = None,
    ) -> None:
        model.verify()
        self.name = model_name(model_id(model), name)
        if model.outputs.kind in _NOT_SERVED:
            makes, instead = _NOT_SERVED[model.outputs.kind]
            raise ConfigError(
                f"the network makes {makes}, which hwnas serve does not answer with yet; use "
                f"`{instead}`"
            )
        self.model, self.limits, self.cache = model, limits, cache
        self.output_shape = output_shape(model)
        self._costs = RequestCosts(
            input_of(model), math.prod(self.output_shape), len(model.outputs.labels)
        )
        self.memory = MemoryBudget(limits.memory_bytes, limits.memory_wait_s)
        self._check_memory()
        first, *others = networks_of(model, settings.max_batch, settings.threads, artifact)
        self._first, self._session = first, first.session
        self.requests = Counter(
            "hwnas_requests_total", "Requests that were answered.", ("path", "status")
        )
        self.seconds = Histogram(
            "hwnas_request_seconds", "Time from the head of a POST to its answer.", _SECONDS
        )
        self._images = Counter("hwnas_images_total", "Images that the network has processed.")
        self._run_seconds = Histogram(
            "hwnas_run_seconds", "Time of the network for one batch.", _SECONDS
        )
        self._dropped = Counter(
            "hwnas_dropped_requests_total",
            "Requests not computed: deadline passed or client disconnected.",
            ("reason",),
        )
        sizes = [2**i for i in range((settings.max_batch - 1).bit_length() + 1)]
        self._batch = Histogram("hwnas_batch_images", "Images of one batch.", sizes)
        self._big_images = Counter(
            "hwnas_big_images_total", "Images that the big network of a cascade has processed."
        )
        self._batcher = self._queue(first, settings, self._observe)
        self._others = [(each, self._queue(each, settings, self._observe_big)) for each in others]

    def _queue(
        self,
        network: ServedNetwork,
        settings: BatchSettings,
        observe: Callable[[int, float], object],
    ) -> Batcher:
        wait_s, most = settings.max_wait_ms / 1e3, self.limits.waiting_images
        run, batch = network.session.run, settings.max_batch
        return Batcher(run, batch, wait_s, most, observe, self._drop)

    @property
    def metrics(self) -> list[Metric]:
        """All metrics of the service."""
        waiting = Gauge("hwnas_queue_images", "Images that wait for a network.", self._waiting)
        about = {"model": self.name, "bundle": model_id(self.model)}
        info = Gauge("hwnas_info", "Model and bundle that are served.", lambda: 1, about)
        memory = Gauge(
            "hwnas_memory_bytes", "Memory reserved by requests.", lambda: self.memory.used_bytes
        )
        limit = Gauge(
            "hwnas_memory_limit_bytes",
            "Memory limit of all requests.",
            lambda: self.memory.total_bytes,
        )
        return [
            info, self.requests, self.seconds, self._images, self._batch, self._run_seconds,
            waiting, self._dropped, memory, limit,
            *([self._big_images] if self._others else []),
            *(cache_metrics(self.cache) if self.cache is not None else []),
        ]  # fmt: skip

    def _waiting(self) -> int:
        return sum(each.waiting for each in (self._batcher, *(queue for _, queue in self._others)))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of raw images."""
        channels, height, width = self._costs.preprocessing.input_shape
        return height, width, channels

    @contextmanager
    def claim(self, is_connected: Callable[[], bool]) -> Iterator[ResourceClaim]:
        """Begin a request, whose time runs from now on, and give its memory back at the end."""
        claim = ResourceClaim(time.monotonic() + self.limits.answer_s, is_connected)
        try:
            yield claim
        finally:
            claim.shrink(0)

    def read_file(self, body: bytes, claim: ResourceClaim) -> NDArray[np.uint8]:
        """Return the pixels (1, H, W, C) of an image file.

        Memory for all later steps is reserved before anything is decoded.

        Raises:
            DataError: The body is not an image, or is damaged.
            Refusal: The body is not a PNG or JPEG, its header is damaged, it has too many pixels,
                or there is no memory for them.
        """
        header = read_header(body)
        size = f"{header.width} x {header.height} pixels"
        if header.width * header.height > self.limits.pixels:
            raise RequestRefusal(
                413, f"the image has {size}; at most {self.limits.pixels} are accepted"
            )
        if claim.answering == "mask":
            self._check_mask(header.height, header.width)
        needed = self._costs.file(header, len(body), claim.answering)
        self.reserve(needed, f"an image of {size}", claim)
        return self.model.read_image(io.BytesIO(body))[None]

    def read_pixels(self, body: bytes, claim: ResourceClaim) -> NDArray[np.uint8]:
        """Return the raw images (N, H, W, C) in a body, which have the network's own size.

        Raises:
            Refusal: The body is not a whole number of images, or there are too many.
        """
        size = math.prod(self.image_shape)
        if not body or len(body) % size:
            raise RequestRefusal(
                400,
                f"the body has {len(body)} bytes; expected a multiple of {size}: uint8 images of "
                f"height x width x channels = {' x '.join(map(str, self.image_shape))}",
            )
        count = len(body) // size
        self._batcher.check(count)
        needed = self._costs.images(count, claim.answering)
        self.reserve(needed, f"a request of {count} images", claim)
        return np.frombuffer(body, np.uint8).reshape(-1, *self.image_shape)

    def reserve(self, size: int, what: str, claim: ResourceClaim) -> None:
        """Reserve memory for a request.

        Raises:
            Refusal: 413 if one request may not take as much, 503 if other requests hold the memory.
        """
        reservation = self.memory.reserve("work", size, what, lambda: claim.is_wanted)
        claim.reserved.append(reservation)
        if not claim.is_wanted:  # the request waited too long for memory
            self._drop("late" if claim.is_connected() else "gone")
            raise RequestRefusal(
                503, "no memory was free for this request in time; try again", Retry_After="2"
            )

    def outputs(self, images: NDArray[np.uint8], claim: ResourceClaim) -> NDArray[Any]:
        """Return the outputs (N, ...) for uint8 images (N, H, W, C), through the cache and queues.

        Raises:
            Refusal: A queue is full, a network takes too long, or its outputs are not finite.
            ArtifactError: A network fails.
        """
        return self._found(images, claim)[0]

    def describe(self, images: NDArray[np.uint8], claim: ResourceClaim) -> list[dict[str, Any]]:
        """Return predictions for uint8 images (N, H, W, C), as from `run` of the model."""
        found = self._found(images, claim)
        if isinstance(self.model, Cascade):
            return self.model.described(*found)
        return self.model.outputs.describe(*found)

    def _found(self, images: NDArray[np.uint8], claim: ResourceClaim) -> tuple[NDArray[Any], ...]:
        """Return the outputs, and for a cascade the mask of images that the big network answers."""

        def compute(some: NDArray[np.uint8]) -> tuple[NDArray[Any], ...]:
            return self._computed(some, claim)

        if self.cache is None:
            found = compute(images)
        else:
            found = self.cache.through(self.model.fingerprint, images, compute)
        # JSON cannot hold them.
        if claim.answering != "binary" and not np.isfinite(found[0]).all():
            raise RequestRefusal(500, "the network's outputs for these images are not finite")
        return found

    def _computed(
        self, images: NDArray[np.uint8], claim: ResourceClaim
    ) -> tuple[NDArray[Any], ...]:
        outputs = self._run(self._first, self._batcher, images, claim)
        if not isinstance(self.model, Cascade):
            return (outputs,)
        on = unsure(outputs, self.model.rule, self.model.threshold)
        if on.any():
            [big] = self._others
            outputs = outputs.copy()
            outputs[on] = self._run(*big, images[on], claim)
        return outputs, on

    def _run(
        self,
        network: ServedNetwork,
        queue: Batcher,
        images: NDArray[np.uint8],
        claim: ResourceClaim,
    ) -> NDArray[Any]:
        # Preprocess in the request's thread, so that the network's thread only runs the network.
        inputs = network.preprocessing(images).contiguous().numpy()
        answer = queue.submit(inputs, claim.deadline, claim.is_connected)
        try:
            return answer.result(max(0.0, claim.deadline - time.monotonic()))
        except TimeoutError:
            if not answer.cancel():  # it is running, and needs its memory until the run ends
                running = ResourceClaim(reserved=[each.split() for each in claim.reserved])
                answer.add_done_callback(lambda _: running.shrink(0))
            raise RequestRefusal(
                504, f"the network gave no answer within {self.limits.answer_s:g} s"
            ) from None

    def mask(self, images: NDArray[np.uint8], claim: ResourceClaim) -> bytes:
        """Return the mask of one uint8 image (1, H, W, C), in the image's size, as a PNG.

        Raises:
            Refusal: There are several images, or the mask would take too much memory.
            DataError: The network is not a segmentation network.
        """
        count, height, width, _ = images.shape
        if count != 1:
            raise RequestRefusal(400, f"{count} images were sent; a mask needs exactly one")
        self._check_mask(height, width)
        outputs = self.outputs(images, claim)
        return mask_png(self.model.outputs.masks(outputs, (height, width))[0])

    def _check_mask(self, height: int, width: int) -> None:
        if 4 * height * width * len(self.model.outputs.labels) > self.limits.mask_bytes:
            raise RequestRefusal(
                413,
                f"the mask of {width} x {height} pixels needs too much memory; shrink the image",
            )

    def _check_memory(self) -> None:
        needed = self._costs.images(1, "meaning")
        if self.memory.limit("work") < needed:
            raise ConfigError(
                f"memory for requests is {self.limits.memory_bytes / 1e6:g} MB; one image of the "
                f"network's own size needs {math.ceil(needed * 4 / 3 / 1e6)} MB; give a "
                "larger --memory-mb"
            )

    def _drop(self, reason: Drop) -> None:
        self._dropped.add(1, reason)

    def close(self) -> None:
        """Answer the waiting requests, and accept no more."""
        self._batcher.close()
        for _, queue in self._others:
            queue.close()

    def _observe_big(self, images: int, seconds: float) -> None:
        self._big_images.add(images)
        self._run_seconds.observe(seconds)

    def _observe(self, images: int, seconds: float) -> None:
        self._images.add(images)
        self._batch.observe(images)
        self._run_seconds.observe(seconds)
