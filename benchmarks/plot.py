"""A plot of ratios as SVG text: one bar a case, with a line where both sides are equal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LABEL, _BAR, _ROW, _TOP = 330, 420, 24, 44  # pixels


def bars(title: str, names: Sequence[str], ratios: Sequence[float]) -> str:
    """Bars from zero to the largest ratio; those below one are drawn in red."""
    most = max(1.2, *ratios)
    height = _TOP + _ROW * len(names) + 16
    one = _LABEL + _BAR / most
    size = f'width="{_LABEL + _BAR + 70}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
    ]
    for i, (name, ratio) in enumerate(zip(names, ratios, strict=True)):
        y, width = _TOP + _ROW * i, _BAR * ratio / most
        color = "#2a7" if ratio >= 1 else "#c44"
        lines += [
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{y}" width="{width:.1f}" height="18" fill="{color}"/>',
            f'<text x="{_LABEL + width + 6:.1f}" y="{y + 14}">{ratio:.3f}</text>',
        ]
    end = height - 12
    lines.append(f'<line x1="{one:.1f}" y1="{_TOP - 6}" x2="{one:.1f}" y2="{end}" stroke="black"/>')
    return "\n".join((*lines, "</svg>", ""))
