"""Trains a small language model of Kimi Delta Attention layers on text, byte by byte.

    kdad &
    torchrun --nproc-per-node 4 client/python/examples/train.py --kdad

Processes share the GPUs of their host, and one daemon. Each trains on texts of its own, and they average their gradients
(torch.distributed: NCCL with a GPU for each process, else gloo). Many hosts: torchrun's own options, and one daemon a host.
Needs fla-core. Without a GPU the layers are fla's naive recurrence, slow and without kdad: that shows that the script
runs, and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

REPOSITORY = Path(__file__).parents[3]


class Attention(nn.Module):
    """A KDA layer: a decay for each column and row, the delta rule, a gated output."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.decay = nn.Sequential(nn.Linear(width, 64, bias=False), nn.Linear(64, width))
        self.beta = nn.Linear(width, heads, bias=False)
        self.gate = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width // heads)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)) for y in self.qkv(x).chunk(3, -1))
        g = -F.softplus(self.decay(x).float() - 2).unflatten(-1, (self.heads, -1))
        out = attend(q, k, v, g, self.beta(x).sigmoid())
        return self.out(self.norm(out).flatten(-2) * self.gate(x).sigmoid())


def attend(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    if q.is_cuda:
        from fla.ops.kda import chunk_kda

        return chunk_kda(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]
    from fla.ops.kda.naive import naive_recurrent_kda

    return naive_recurrent_kda(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, g, beta)[0]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.feed(x)


class Model(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of predicting each byte of [B, T + 1] from those before it."""
        logits = self.out(self.blocks(self.embed(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def read_text(paths: list[Path]) -> Tensor:
    """The files' bytes; without paths, the documents of this repository."""
    paths = paths or sorted([REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("proto/*.md")])
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in paths)), dtype=torch.uint8).long()


def batch_of(text: Tensor, options: argparse.Namespace, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - options.length, (options.batch,), generator=generator)
    return torch.stack([text[start : start + options.length + 1] for start in starts.tolist()])


def average_gradients(model: nn.Module) -> None:
    """One all-reduce of all gradients."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    shared = flat if dist.get_backend() == "nccl" else flat.cpu()
    dist.all_reduce(shared)
    shared = (shared / dist.get_world_size()).to(flat.device)
    for gradient, part in zip(gradients, shared.split([g.numel() for g in gradients])):
        gradient.copy_(part.view_as(gradient))


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Trains; returns the losses, and tokens a second of all processes together, without the first steps."""
    torch.manual_seed(0)
    model = Model(options.width, options.heads, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    text = read_text(options.text)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    losses, began = [], 0.0
    for step in range(options.warm + options.steps):
        if step == options.warm:  # all is compiled by now
            dist.barrier()
            began = time.monotonic()
        total = torch.zeros((), device=device)
        for _ in range(options.accumulate):
            tokens = batch_of(text, options, generator).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(tokens) / options.accumulate
            loss.backward()
            total += loss.detach()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(float(total), 5))  # waits for the GPU
        if dist.get_rank() == 0 and options.verbose:
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
    dist.barrier()
    tokens_each = options.steps * options.accumulate * options.batch * options.length
    speed = tokens_each * dist.get_world_size() / (time.monotonic() - began)
    return {"losses": losses, "tokens/s": round(speed)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", type=Path, help="files to learn from; default: this repository's documents")
    parser.add_argument("--kdad", action="store_true", help="use kdad in the backward pass; else fla alone")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm", type=int, default=3, help="steps before those whose time counts")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of a step")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096, help="bytes of a text")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--verbose", action="store_true", help="each step's loss")
    return parser.parse_args()


def main() -> None:
    options = parse()
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    own_gpu = gpus and gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    dist.init_process_group("nccl" if own_gpu else "gloo")
    if options.kdad:
        import kdad.fla

        kdad.fla.enable()
    result = train(options, device)
    if options.kdad:
        import kdad

        result["jobs"] = kdad.stats()
    if dist.get_rank() == 0:
        result = {"kdad": options.kdad, "device": str(device), "processes": dist.get_world_size(), **result}
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
