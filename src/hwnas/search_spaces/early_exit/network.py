"""Network with an early exit: its head, its threshold, and which images leave.

Each image leaves at the exit if the largest class probability there reaches a threshold, as in
BranchyNet (Teerapittayanon et al., "BranchyNet: Fast inference via early exiting from deep neural
networks", ICPR 2016), which compares the entropy instead.

Shapes: N images, C channels, T tokens, K classes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError

__all__ = ["NEVER", "EarlyExitNetwork", "ExitHead", "exit_heads", "output_of"]

NEVER = 2.0
"""Threshold above every probability: no image leaves."""


class ExitHead(nn.Module):
    """Classifier on the output of a block: (N, C, H, W) or (N, T, C) -> (N, K).

    Attributes:
        threshold: Largest class probability from which on an image leaves, float32 ().
        fitted_share: Share of the images that left where the threshold was fitted, float32 (); 0
            before.

    Args:
        block: Name of the block in the network.
        channels: C.
        outputs: K.
        share: Share of images that shall leave, in (0, 1).
    """

    threshold: Tensor
    fitted_share: Tensor

    def __init__(self, block: str, channels: int, outputs: int, share: float) -> None:
        super().__init__()
        self.block, self.share = block, share
        self.norm = nn.LayerNorm(channels)
        self.outputs = nn.Linear(channels, outputs)
        self.register_buffer("threshold", torch.tensor(NEVER))
        self.register_buffer("fitted_share", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (N, K) for the block's output."""
        pooled = x.mean((2, 3)) if x.dim() == 4 else x.mean(1)
        outputs: Tensor = self.outputs(self.norm(pooled))
        return outputs

    def extra_repr(self) -> str:
        """Return the settings of the exit, for the text of the module."""
        return f"block={self.block}, share={self.share:g}"

    @torch.no_grad()
    def fit(self, confidence: Tensor) -> None:
        """Set the threshold so that the wanted share of some images leaves.

        The share differs from the wanted one by less than one image, unless images have equal
        confidences.

        Args:
            confidence: Largest class probability of each image at the exit, float (N,), N >= 1.
        """
        ordered = confidence.flatten().float().sort(descending=True).values
        leaving = round(self.share * len(ordered))
        # Half-way to the next image, so that rounding in a runtime does not change who leaves.
        between = torch.tensor(NEVER, device=ordered.device)
        if leaving:
            between = ordered[leaving - 1 : leaving + 1].mean()
        self.threshold.copy_(between)
        self.fitted_share.copy_((ordered >= between).float().mean())


class EarlyExitNetwork(nn.Module):
    """Network in which images may leave after one of its blocks: (N, C, H, W) -> (N, K).

    In training mode, each image's outputs are those of the exit or those of the end, drawn at
    random with equal probability by PyTorch's generator. The expected loss is thus the mean of the
    losses of both. In evaluation mode, they are those of the exit if its largest class probability
    reaches the threshold. Both are computed for all images; an exported file skips the rest of the
    network (`hwnas.deploy.onnx.early_exit`).

    Args:
        network: Network without an exit.
        exit: Result of `exit_heads`: no head or one; the shared network of a supernet has all.
    """

    def __init__(self, network: nn.Module, exit: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.exit = exit

    @property
    def head(self) -> ExitHead | None:
        """Head of the exit; None if no image leaves early."""
        for head in self.exit.children():
            assert isinstance(head, ExitHead)
            return head
        return None

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs (N, K) of images."""
        if self.head is None:
            outputs: Tensor = self.network(images)
            return outputs
        if not self.training:
            return self.paths(images)[0]
        early, end = self._both(self.head, images)
        return torch.where(torch.rand(len(early), 1, device=early.device) < 0.5, early, end)

    def paths(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs in evaluation mode, and the values at the exit.

        Returns:
            The outputs (N, K), the outputs at the exit (N, K), and the largest class probability at
            the exit (N, 1).
        """
        head = self.head
        assert head is not None
        early, end = self._both(head, images)
        confidence = early.softmax(1).amax(1, keepdim=True)
        return torch.where(confidence >= head.threshold, early, end), early, confidence

    def _both(self, head: ExitHead, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs at the exit and those at the end, each (N, K)."""
        with output_of(self.network, head.block) as written:
            end = self.network(images)
        return head(written[0]), end


def exit_heads(outputs: int, place: str, block: str, channels: int, share: float) -> nn.ModuleDict:
    """Return the head of an exit by the name of its place; no head if the share is 0.

    Heads at different places have different names, so they share no weights.
    """
    name = re.sub(r"\W", "_", place)
    return nn.ModuleDict({name: ExitHead(block, channels, outputs, share)} if share else {})


@contextlib.contextmanager
def output_of(network: nn.Module, block: str) -> Iterator[list[Tensor]]:
    """Yield a list that gets the output of a block whenever the network runs in this context.

    Raises:
        ConfigError: The block ran and its output is not a tensor.
    """
    written: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: object) -> None:
        if not isinstance(output, Tensor):
            raise ConfigError(
                f"block {block} returns {type(output).__name__}; an exit needs a block that "
                "returns one tensor"
            )
        written.append(output)

    handle = network.get_submodule(block).register_forward_hook(keep)
    try:
        yield written
    finally:
        handle.remove()
