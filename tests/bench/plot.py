"""Plots as SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

COLOURS = ("#9aa0a6", "#5f6368", "#c58b3c", "#1a73e8", "#7baaf7", "#188038")


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _write(path: Path, width: int, height: int, title: str, parts: Sequence[str]) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    ground = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    path.write_text("\n".join([head, ground, _text(16, 22, title, size=14), *parts, "</svg>"]) + "\n")


def bars(path: Path, title: str, rows: Mapping[str, Mapping[str, float]], line: str) -> None:
    """A group of bars for each row, as long as the times of `line`; `line` itself is a line at 1."""
    names = [name for name in dict.fromkeys(name for row in rows.values() for name in row) if name != line]
    most = max(row[name] / row[line] for row in rows.values() for name in row)
    left, step, top, width = 200, 16, 40, 860
    scale = (width - left - 90) / most
    parts: list[str] = []
    y = float(top)
    for label, row in rows.items():
        parts.append(_text(left - 8, y + step * len(row) / 2, label, "end"))
        begin = y
        for name in names:
            if name not in row:
                continue
            times = row[name] / row[line]
            colour = COLOURS[names.index(name) % len(COLOURS)]
            parts.append(
                f'<rect x="{left}" y="{y:.1f}" width="{times * scale:.1f}" height="{step - 3}" fill="{colour}"/>'
            )
            parts.append(_text(left + times * scale + 4, y + step - 5, f"{name}  {row[name]:.3g} ms", size=10))
            y += step
        at = f'x1="{left + scale:.1f}" x2="{left + scale:.1f}" y1="{begin - 3:.1f}" y2="{y:.1f}"'
        parts.append(f'<line {at} stroke="#d93025"/>')
        y += 14
    parts.append(_text(left + scale, y + 4, line, "middle", 11))
    _write(path, width, int(y) + 20, title, parts)


def lines(path: Path, title: str, x_name: str, series: Mapping[str, Mapping[float, float]], limit: float) -> None:
    """Curves on logarithmic axes. Zeros lie on the lowest line; what is not finite is left out."""
    left, top, width, height = 70, 40, 640, 300
    every = [y for curve in series.values() for y in curve.values() if math.isfinite(y) and y > 0] + [limit]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    xs = [math.log10(x) for curve in series.values() for x in curve]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - min(xs)) / (max(xs) - min(xs) or 1)
        up = (max(math.log10(y) if y > 0 else low, low) - low) / (high - low or 1)
        return left + across * width, top + (1 - up) * height

    parts: list[str] = []
    for power in range(low, high + 1):
        y = place(10 ** xs[0], 10.0**power)[1]
        parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e0e0e0"/>')
        parts.append(_text(left - 6, y + 4, f"1e{power}", "end", 11))
    y = place(10 ** xs[0], limit)[1]
    at = f'x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"'
    parts.append(f'<line {at} stroke="#d93025" stroke-dasharray="4"/>')
    parts.append(_text(left + width + 6, y + 4, f"goal {limit:g}", size=11))
    for number, (name, curve) in enumerate(series.items()):
        points = [place(x, y) for x, y in curve.items() if math.isfinite(y)]
        if not points:
            continue
        colour = COLOURS[number % len(COLOURS)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + height + 34 + 16 * number
        parts.append(f'<rect x="{left + 10}" y="{y}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(left + 26, y + 9, name))
    for x in sorted({x for curve in series.values() for x in curve}):
        parts.append(_text(place(x, limit)[0], top + height + 16, f"{x:g}", "middle", 11))
    parts.append(_text(left + width, top + height + 34, x_name, "end", 11))
    _write(path, left + width + 90, top + height + 44 + 16 * len(series), title, parts)
