"""Bar charts as SVG, by our own few lines: no dependency, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, LABEL, ROW, TOP = 780, 270, 26, 44
BARS = WIDTH - LABEL - 130
"""What is left for bars between the names and the numbers."""

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 14px; }
  .quiet { fill: #59636e; }
  .ours { fill: #1a7f5a; } .peer { fill: #8c959f; } .other { fill: #c4a35a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .quiet { fill: #9198a1; }
    .ours { fill: #3fb68b; } .peer { fill: #6e7681; } .other { fill: #9d8449; }
  }
"""


class Bar(NamedTuple):
    """`kind`: ours, peer, or other (a ceiling, or another durability)."""

    label: str
    value: float
    shown: str
    kind: str


def bar_chart(title: str, says: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars, all to one scale that begins at nothing."""
    height = TOP + ROW * len(bars) + 8
    most = max((bar.value for bar in bars), default=0) or 1
    rows = [_row(bar, number, bar.value / most) for number, bar in enumerate(bars)]
    told = escape(f"{title}: " + ", ".join(f"{bar.label} {bar.shown}" for bar in bars), quote=True)
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{told}">',
            f"<style>{STYLE}</style>",
            f'<text class="title" x="0" y="16">{escape(title)}</text>',
            f'<text class="quiet" x="0" y="34">{escape(says)}</text>',
            *rows,
            "</svg>",
            "",
        ]
    )


def _row(bar: Bar, number: int, share: float) -> str:
    top = TOP + ROW * number
    width = max(share * BARS, 1)
    return (
        f'<text x="{LABEL - 10}" y="{top + 16}" text-anchor="end">{escape(bar.label)}</text>'
        f'<rect class="{bar.kind}" x="{LABEL}" y="{top + 3}" width="{width:.1f}" height="18"'
        ' rx="2"/>'
        f'<text x="{LABEL + width + 8:.1f}" y="{top + 16}">{escape(bar.shown)}</text>'
    )
