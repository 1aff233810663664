"""Two small real models and data for them, all on the GPU, so that what is measured is training and not loading.

A ResNet on images of CIFAR's size, made here: ten classes of smooth patterns under noise. A GPT on the bytes of
Python's own standard library. With ``tiny`` both are as small as can be, for trying all of this on a processor.
"""

import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

KINDS = ("resnet", "gpt")


def device() -> torch.device:
    """The GPU, or the processor where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def settle() -> None:
    """Wait until the GPU has done what it was told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# ── the models ────────────────────────────────────────────────────────────────────────────────────────────────────


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inward, outward, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outward, outward, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outward), nn.BatchNorm2d(outward)])
        same = inward == outward and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inward, outward, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        inner = functional.relu(self.norms[0](self.first(images)))
        return functional.relu(self.norms[1](self.second(inner)) + self.around(images))


def resnet(width: int, blocks: int) -> nn.Module:
    """Four stages (ResNet-18 with a width of 64 and two blocks each), for images of 32 × 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inward = width
    for stage in range(4):
        outward = width << stage
        for number in range(blocks):
            layers.append(Block(inward, outward, 2 if stage and not number else 1))
            inward = outward
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, 10))


class Layer(nn.Module):
    """Attention to what came before, and two linear layers."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, states: Tensor) -> Tensor:
        count, length, width = states.shape
        query, key, value = (
            part.view(count, length, self.heads, -1).transpose(1, 2)
            for part in self.attention(self.norms[0](states)).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        states = states + self.mixed(seen.transpose(1, 2).reshape(count, length, width))
        return states + self.inner(self.norms[1](states))


class Gpt(nn.Module):
    """A language model of bytes."""

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads, 0.1) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.layers(self.bytes(text) + self.places(places))))


# ── the data ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Resident(Dataset[Any]):
    """Samples that lie on the GPU, or wherever `move` puts them; a batch is picked there at once.

    Without ``labels`` a sample is text: all but its last byte, and all but its first.
    """

    def __init__(self, samples: Tensor, labels: Tensor | None = None) -> None:
        self.samples, self.labels = samples, labels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(indices).to(self.samples.device, non_blocking=True)
        samples = self.samples[chosen]
        return (
            (samples[:, :-1].long(), samples[:, 1:].long()) if self.labels is None else (samples, self.labels[chosen])
        )

    def move(self, where: torch.device) -> None:
        """Move the samples to a device."""
        self.samples = self.samples.to(where)
        self.labels = None if self.labels is None else self.labels.to(where)


def images(count: int, where: torch.device) -> Resident:
    """Images of ten classes: one of four smooth patterns of the class, as strong as the noise on it."""
    chance = torch.Generator(where).manual_seed(1)
    drawn = partial(torch.randn, generator=chance, device=where)
    patterns = functional.interpolate(drawn(40, 3, 6, 6), size=(32, 32), mode="bicubic")
    kinds = torch.randint(0, 40, (count,), generator=chance, device=where)
    strength = 0.3 + 0.4 * torch.rand(count, 1, 1, 1, generator=chance, device=where)
    return Resident(strength * patterns[kinds] + 0.8 * drawn(count, 3, 32, 32), kinds // 4)


def text(count: int, context: int, where: torch.device) -> Resident:
    """Python's standard library, in pieces; each is to be guessed byte by byte."""
    wanted, found = count * (context + 1), bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if len(found) >= wanted:
            break
        if "site-packages" not in path.parts:
            found += path.read_bytes()
    pieces = len(found) // (context + 1)
    whole = torch.frombuffer(found[: min(pieces, count) * (context + 1)], dtype=torch.uint8).clone()
    return Resident(whole.view(-1, context + 1).to(where))


# ── a training ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained: how it is made, its data, and the batch sizes it is tried with."""

    kind: str
    make: Callable[[], nn.Module]
    data: Resident
    small: int
    large: int

    def loader(self, batch: int) -> DataLoader[Any]:
        """The data, in an order of its own for each epoch."""
        return DataLoader(self.data, batch_size=batch, shuffle=True, drop_last=True, collate_fn=_as_it_is)

    def training(self, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A model and its optimizer: SGD with momentum for images, AdamW for text."""
        torch.manual_seed(seed)
        model = self.make().to(device())
        if self.kind == "resnet":
            model = model.to(memory_format=torch.channels_last)
            return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)


def _as_it_is(batch: Any) -> Any:
    return batch


def workload(kind: str, *, tiny: bool, where: torch.device | None = None) -> Workload:
    """The one of this kind, with its data on a device: the GPU if there is one, or ``where``."""
    where = where or device()
    if kind == "resnet":
        make = partial(resnet, 4, 1) if tiny else partial(resnet, 64, 2)
        return Workload(kind, make, images(128 if tiny else 50_000, where), *((8, 16) if tiny else (128, 1024)))
    context = 16 if tiny else 256
    make_text = partial(Gpt, *((16, 1, 2) if tiny else (512, 8, 8)), context)
    return Workload(kind, make_text, text(128 if tiny else 40_000, context, where), *((8, 16) if tiny else (16, 128)))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean loss over a batch, in bfloat16 where that is safe."""
    inputs, targets = batch
    with torch.autocast(device().type, torch.bfloat16):
        logits = model(inputs)
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> Tensor:
    """One step of an ordinary loop; its loss, still on the GPU."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader
