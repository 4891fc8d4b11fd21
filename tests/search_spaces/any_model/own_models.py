"""Plain models as users write them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.search_spaces import mobilenet


class PlainCNN(nn.Module):
    """Convolutional network that flattens its feature map before its linear layers."""

    def __init__(self, outputs: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1, bias=False),
            nn.BatchNorm2d(48),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Linear(48 * 4 * 4, 64)
        self.outputs = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(1)
        outputs: Tensor = self.outputs(self.hidden(x).relu())
        return outputs


class BasicBlock(nn.Module):
    """Residual block of He et al., CVPR 2016."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.activation = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += self.shortcut(x)
        result: Tensor = self.activation(y)
        return result


class ResNet(nn.Module):
    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.layer1 = nn.Sequential(BasicBlock(16, 16), BasicBlock(16, 16))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32), BasicBlock(32, 32))
        self.outputs = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.outputs(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))
        return outputs


class Dense(nn.Module):
    """Concatenations, followed by batch and group normalisation, and a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.left = nn.Conv2d(16, 24, 3, padding=1, bias=False)
        self.right = nn.Conv2d(16, 16, 1, bias=False)
        self.norm = nn.BatchNorm2d(40)
        self.mix = nn.Conv2d(40, 32, 1)
        self.group_norm = nn.GroupNorm(4, 32)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=8)
        self.outputs = nn.Linear(48, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.norm(torch.cat([self.left(x), self.right(x)], 1)).relu()
        z = self.grouped(self.group_norm(self.mix(y)).relu())
        outputs: Tensor = self.outputs(torch.cat([x, z], 1).mean((2, 3)))
        return outputs


def double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Small U-Net (Ronneberger et al., MICCAI 2015), with an output for each pixel."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double(3, 16), double(16, 32), double(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(64, 32, 2, 2)
        self.merge2 = double(64, 32)
        self.up1 = nn.ConvTranspose2d(32, 16, 2, 2)
        self.merge1 = double(32, 16)
        self.outputs = nn.Conv2d(16, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        third = self.bottom(self.pool(second))
        y = self.merge2(torch.cat([self.up2(third), second], 1))
        y = self.merge1(torch.cat([self.up1(y), first], 1))
        outputs: Tensor = self.outputs(y)
        return outputs


def mobile() -> nn.Module:
    space = mobilenet((16, 16, 3), 10)
    return space.build(space.largest())


class ConvNextBlock(nn.Module):
    """Block of Liu et al., CVPR 2022: channels last within the block, and a scale for each."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.project(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of a feature map."""

    def forward(self, x: Tensor) -> Tensor:  # users may name the argument as they like
        y = F.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps
        )
        return y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 2, 2), LayerNorm2d(24))
        self.stage1 = nn.Sequential(ConvNextBlock(24), ConvNextBlock(24))
        self.down = nn.Sequential(LayerNorm2d(24), nn.Conv2d(24, 48, 2, 2))
        self.stage2 = nn.Sequential(*(ConvNextBlock(48) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.down(self.stage1(self.stem(x))))
        outputs: Tensor = self.head(self.norm(x.mean((2, 3))))
        return outputs


class Joint(nn.Module):
    """Attention with one layer for queries, keys and values, as in timm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(n, tokens, 3, self.num_heads, self.head_dim)
        y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0))
        outputs: Tensor = self.proj(
            y.transpose(1, 2).reshape(n, tokens, self.num_heads * self.head_dim)
        )
        return outputs


class ByHead(Joint):
    """Attention in which the queries, keys and values of a head are adjacent."""

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(n, tokens, self.num_heads, 3, self.head_dim)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        outputs: Tensor = self.proj(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )
        return outputs


class Separate(nn.Module):
    """Attention with separate layers for queries, keys and values, and its inner width stored."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inner, self.scale = heads, width, (width // heads) ** -0.5
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.inner // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        outputs: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return outputs


class WidthBound(nn.Module):
    """Attention whose heads have the width of its input together, as in minGPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.n_embd = heads, width
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = (
            part.view(n, tokens, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.attend(x).split(self.n_embd, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()
        outputs: Tensor = self.project(y.view(n, tokens, width))
        return outputs


class OfTorch(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return outputs


class TransformerBlock(nn.Module):
    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), attention, nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.gamma * self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Transformer of Dosovitskiy et al., ICLR 2021: patches, a class token, positions."""

    def __init__(
        self, attention: Callable[[int, int], nn.Module] = Joint, outputs: int = 10, side: int = 16
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, side // 4, side // 4)
        self.token = nn.Parameter(torch.randn(1, 1, 48) * 0.1)
        self.position = nn.Parameter(torch.randn(1, 17, 48) * 0.1)
        self.blocks = nn.ModuleList(TransformerBlock(48, attention(48, 6)) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        outputs: Tensor = self.head(self.norm(x)[:, 0])
        return outputs


class Encoder(nn.Module):
    """PyTorch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 48, 4, 4)
        layer = nn.TransformerEncoderLayer(48, 6, 96, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.outputs = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(self.patch(x).flatten(2).transpose(1, 2))
        outputs: Tensor = self.outputs(x.mean(1))
        return outputs


class ResizingUNet(UNet):
    """U-Net with interpolation instead of transposed convolutions."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__(outputs)
        self.up2, self.up1 = nn.Conv2d(64, 32, 1), nn.Conv2d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        y = self.up2(self.bottom(self.pool(second)))
        y = F.interpolate(y, size=second.shape[-2:], mode="bilinear", align_corners=False)
        y = self.up1(self.merge2(torch.cat([y, second], 1)))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        outputs: Tensor = self.outputs(self.merge1(torch.cat([y, first], 1)))
        return outputs


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model whose weights and statistics differ from their initial values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = make()
        for name, tensor in model.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(torch.rand_like(parameter) * 0.2)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": PlainCNN,
    "resnet": ResNet,
    "mobilenet": mobile,
    "dense": Dense,
    "unet": UNet,
    "unet-resizing": ResizingUNet,
    "convnext": ConvNext,
    "vit": VisionTransformer,
    "vit-separate": lambda: VisionTransformer(Separate),
    "vit-bound": lambda: VisionTransformer(WidthBound),
    "vit-torch": lambda: VisionTransformer(OfTorch),
    "encoder": Encoder,
}
